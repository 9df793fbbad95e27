#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/doctor/cluster_doctor.h"
#include "daemon/doctor/findings.h"
#include "daemon/doctor/port_doctor.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_service.h"
#include "daemon/rpc/node_api/own_findings.h"

namespace epd {
namespace {

NodeAnswer AnswerOf(const v1::AskNodesResponse::Node& node) {
  NodeAnswer answer;
  answer.node = node.node();
  v1::NodeReport said;
  if (node.status().code() == static_cast<int>(absl::StatusCode::kInvalidArgument)) return answer;
  if (node.status().code() != 0 || !said.ParseFromString(node.response())) {
    answer.problem = node.status().message();
    return answer;
  }
  answer.version = said.facts().epd_version();
  answer.clock = absl::FromUnixMillis(said.facts().wall_clock_ms());
  answer.address = said.address();
  for (const v1::ClusterWorkerReport& worker : said.workers())
    answer.wire_addresses.push_back(worker.wire_address());
  return answer;
}

// What several have to say for one answer: it is given when all have.
struct Joined {
  v1::GetDoctorResponse& response;
  std::function<void(const absl::Status&)> finish;
  int open;

  void Add(const v1::GetDoctorResponse& part) {
    response.MergeFrom(part);
    if (--open == 0) finish(absl::OkStatus());
  }
};

}  // namespace

v1::Finding NodeService::UnknownCuda() {
  return MakeFinding("cuda probe", false, "",
                     "nothing is known of this node's GPUs; the cpu backend works all the same",
                     "check the setting `worker`; run 'epd-worker --doctor-cuda=' by hand");
}

v1::Finding NodeService::UnknownPorts() {
  return MakeFinding("ports", false, "", "whether other nodes can be reached is not known",
                     "check the setting `worker`");
}

void NodeService::DiagnoseNodes(const DoctorProcess::Done& done) {
  v1::AskNodesRequest question;
  question.set_method("GetFacts");
  ClusterAnswers cluster;
  cluster.self = node_.id().value;
  cluster.version = node_.identity().version;
  cluster.coordinator_setting = node_.settings().coordinator;
  cluster.asked = absl::Now();
  node_.coordination().Ask(
      question, [this, cluster, done](absl::StatusOr<v1::AskNodesResponse> asked) mutable {
        cluster.answered = absl::Now();
        if (!asked.ok()) {
          cluster.problem = std::string(asked.status().message());
        } else {
          if (asked->coordinator().empty()) cluster.problem = "the coordinator cannot be reached";
          for (const auto& node : asked->nodes()) cluster.nodes.push_back(AnswerOf(node));
        }
        v1::GetDoctorResponse said;
        for (v1::Finding& finding : DiagnoseCluster(cluster))
          *said.add_findings() = std::move(finding);
        const std::vector<PortToTry> ports = PortsOf(cluster);
        if (ports.empty()) return done(said);
        port_doctor_.Ask(kPortDoctorFlag + PortsToText(ports),
                         [said, done](const v1::GetDoctorResponse& tried) mutable {
                           said.MergeFrom(tried);
                           done(said);
                         });
      });
}

NodeService::Unary* NodeService::GetDoctor(Context* context, const v1::GetDoctorRequest* request,
                                           v1::GetDoctorResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  return AnswerLater(context, node_, [this, response](const Finish& finish) {
    *response = DiagnoseSelf(node_);
    const auto joined = std::make_shared<Joined>(Joined{*response, finish, 2});
    const auto add = [joined](const v1::GetDoctorResponse& part) { joined->Add(part); };
    DiagnoseNodes(add);
    cuda_doctor_.Ask(absl::StrCat("--doctor-cuda=", node_.settings().nccl_library), add);
  });
}

}  // namespace epd
