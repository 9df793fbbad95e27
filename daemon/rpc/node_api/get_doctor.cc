#include "absl/time/clock.h"
#include "daemon/doctor/machine_doctor.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {
namespace {

void Fill(const Node& node, v1::GetDoctorResponse& response) {
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
    daemon.certificate_ends = absl::FormatTime(state.validity.ends);
    daemon.certificate_problem = CertificateProblem(state, absl::Now());
  }
  response = Diagnose(ReadMachine(node.settings().socket), daemon);
}

}  // namespace

NodeService::Unary* NodeService::GetDoctor(Context* context, const v1::GetDoctorRequest* request,
                                           v1::GetDoctorResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  return AnswerLater(context, node_, [this, response](const Finish& finish) {
    Fill(node_, *response);
    cuda_doctor_.Ask([response, finish](const v1::GetDoctorResponse& cuda) {
      response->MergeFrom(cuda);
      finish(absl::OkStatus());
    });
  });
}

}  // namespace epd
