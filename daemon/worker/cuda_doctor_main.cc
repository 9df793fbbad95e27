#include "daemon/worker/cuda_doctor_main.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "daemon/backend/cuda/machine_probe.h"
#include "daemon/observe/cuda_doctor.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

int CudaDoctorMain(const std::string& nccl_library, const std::string& self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const cuda::ProbeResult result = cuda::ProbeInChild(self, nccl_library);
  v1::GetDoctorResponse response;
  for (DoctorFinding& finding : DiagnoseCuda(result.probe, result.end)) {
    v1::Finding& out = *response.add_findings();
    out.set_what(std::move(finding.what));
    out.set_ok(finding.ok);
    out.set_found(std::move(finding.found));
    out.set_consequence(std::move(finding.consequence));
    out.set_fix(std::move(finding.fix));
  }
  return response.SerializeToFileDescriptor(kDoctorFd) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace epd
