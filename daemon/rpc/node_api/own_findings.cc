#include "daemon/rpc/node_api/own_findings.h"

#include <string>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "daemon/doctor/machine_doctor.h"
#include "daemon/rpc/cluster/link_policy.h"

namespace epd {

v1::GetDoctorResponse DiagnoseSelf(const Node& node) {
  const WorkerSupervisor::Figures& figures = node.worker().figures();
  DaemonReport daemon;
  daemon.staging_bytes = node.settings().staging_bytes;
  daemon.num_sessions = node.clients().sessions().size();
  for (const auto& [name, entry] : node.workers()) {
    const WorkerSupervisor::Figures& own = entry->supervisor.figures();
    daemon.workers.push_back({ToString(name), std::string(Name(own.state)), own.num_restarts,
                              own.last_exit, own.ready.cuda().name(),
                              name.on_gpu() ? own.ready.cuda_problem() : ""});
  }
  daemon.nccl_version = figures.ready.nccl_version();
  daemon.nccl_path = figures.ready.nccl_path();
  daemon.nccl_problem = figures.ready.nccl_problem().empty() ? "no worker has said yet"
                                                             : figures.ready.nccl_problem();
  if (node.certificates().served().enabled()) {
    const CertificateState state = node.certificates().state();
    daemon.certificate_names = absl::StrJoin(OwnHosts(node.settings()), ", ");
    daemon.certificate_ends = absl::FormatTime(state.validity.ends);
    daemon.certificate_problem = CertificateProblem(state, absl::Now());
  }
  return Diagnose(ReadMachine(node.settings().socket), daemon);
}

}  // namespace epd
