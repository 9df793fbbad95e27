#include <algorithm>

#include "client/cli/commands/command.h"
#include "client/cli/local_checks.h"
#include "client/cli/printers/tables.h"
#include "client/cli/report.pb.h"

namespace epd::cli {
namespace {

bool AllOk(const google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings) {
  for (const epd::v1::Finding& finding : findings) {
    if (!finding.ok()) return false;
  }
  return true;
}

}  // namespace

Report RunDoctor(const CommandContext& context) {
  auto doctor = std::make_unique<DoctorReport>();
  CheckLocally(context.options, context.search, *doctor->mutable_local());
  ExitCode code = context.connect_failure.code;
  std::string error;  // Without a connection the findings say why.
  if (context.connection == nullptr && context.options.address.empty()) {
    CheckCuda(*doctor->mutable_local());  // Else the daemon does, in its own environment.
  }
  if (context.connection != nullptr) {
    const Report asked = CallNodeFor(context, "GetDoctor", &epd::v1::Node::Stub::GetDoctor,
                                     epd::v1::GetDoctorRequest(),
                                     std::max(context.options.timeout, kDoctorPatience));
    code = asked.code;
    error = asked.error;
    if (asked.message != nullptr) {
      const auto& response = static_cast<const epd::v1::GetDoctorResponse&>(*asked.message);
      doctor->set_connected(true);
      *doctor->mutable_daemon() = response.findings();
      code =
          AllOk(doctor->local()) && AllOk(doctor->daemon()) ? ExitCode::kOk : ExitCode::kDegraded;
    }
  }
  std::string table = DoctorTable(*doctor);
  return {code, std::move(doctor), std::move(table), std::move(error)};
}

}  // namespace epd::cli
