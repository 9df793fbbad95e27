#include "daemon/rpc/cluster/peer_questions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/cluster/cluster_link.h"
#include "daemon/rpc/cluster/link_proof.h"
#include "daemon/rpc/cluster/node_questions.h"

namespace epd {
namespace {

struct Call {
  Call(const std::string& address, const Node& node) : link(address, node) {}

  ClusterLink link;
  grpc::ClientContext context;
  v1::AskNodesRequest request;
  v1::AskNodesResponse response;
};

}  // namespace

// One question to all.
struct PeerQuestions::Round {
  std::map<std::string, v1::AskNodesResponse::Node> answers;
  size_t num_awaited = 0;
  OnAsked done;

  void Take(const std::string& node, const absl::Status& status, const std::string& response) {
    v1::AskNodesResponse::Node& answer = answers[node];
    answer.set_node(node);
    *answer.mutable_status() = ToProto(status);
    answer.set_response(response);
    if (--num_awaited > 0) return;
    v1::AskNodesResponse all;
    for (auto& [name, one] : answers) *all.add_nodes() = std::move(one);
    Finish(std::move(all));
  }
  void Finish(absl::StatusOr<v1::AskNodesResponse> answer) {
    if (const OnAsked once = std::exchange(done, nullptr)) once(std::move(answer));
  }
};

void PeerQuestions::Take(const Nodes& nodes) {
  if (nodes.empty()) return;
  addresses_.clear();
  for (const v1::ClusterNode& one : nodes) {
    if (one.node() != node_.id().value) addresses_[one.node()] = one.address();
  }
}

void PeerQuestions::Ask(const v1::AskNodesRequest& request, OnAsked done) {
  const auto round = std::make_shared<Round>();
  std::erase_if(rounds_, [](const auto& known) { return known.expired(); });
  rounds_.push_back(round);
  round->num_awaited = 1 + addresses_.size();
  round->done = std::move(done);
  for (const auto& [node, address] : addresses_) {
    if (address.empty()) {
      round->Take(node,
                  absl::UnavailableError(
                      "it takes no calls of other nodes (listen), and nobody coordinates"),
                  "");
      continue;
    }
    AskOne(node, address, request, round);
  }
  AnswerQuestion(node_, request.method(), request.request(),
                 [round, self = node_.id().value](const v1::ClusterAnswer& said) {
                   round->Take(self, FromProto(said.status()), said.response());
                 });
}

void PeerQuestions::AskOne(const std::string& node, const std::string& address,
                           const v1::AskNodesRequest& request,
                           const std::shared_ptr<Round>& round) {
  const auto call = std::make_shared<Call>(address, node_);
  call->request = request;
  call->request.set_alone(true);
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + kAskPatience));
  const auto finish = [call, round, node, address,
                       &loop = node_.loop()](const absl::Status& status) {
    loop.Post([call, round, node, address, status] {
      if (status.ok() && call->response.nodes_size() == 1) {
        const v1::AskNodesResponse::Node& said = call->response.nodes(0);
        return round->Take(node, FromProto(said.status()), said.response());
      }
      round->Take(
          node,
          absl::UnavailableError(absl::StrCat("no answer at ", address, ": ", status.message())),
          "");
    });
  };
  call->link.Prove(kAskPatience, [call, finish](const absl::StatusOr<std::string>& proof) {
    if (!proof.ok()) return finish(proof.status());
    if (!proof->empty()) call->context.AddMetadata(kNodeProofKey, *proof);
    call->link.stub().async()->AskNodes(
        &call->context, &call->request, &call->response,
        [finish](const grpc::Status& status) { finish(FromGrpc(status)); });
  });
}

void PeerQuestions::FinishAll(const absl::Status& status) {
  for (const std::weak_ptr<Round>& known : rounds_) {
    if (const auto round = known.lock(); round != nullptr) round->Finish(status);
  }
}

}  // namespace epd
