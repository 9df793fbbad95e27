#include "daemon/doctor/findings.h"

#include <utility>

namespace epd {

void AddFindings(std::vector<DoctorFinding> findings, v1::GetDoctorResponse& response) {
  for (DoctorFinding& finding : findings) {
    v1::Finding& out = *response.add_findings();
    out.set_what(std::move(finding.what));
    out.set_ok(finding.ok);
    out.set_found(std::move(finding.found));
    out.set_consequence(std::move(finding.consequence));
    out.set_fix(std::move(finding.fix));
  }
}

}  // namespace epd
