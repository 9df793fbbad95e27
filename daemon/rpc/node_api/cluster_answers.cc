// ListNodes, ExplainGroup, GetTrace and ExamineNodes: what all nodes know together.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/explain.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/local_trace.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {
namespace {

// Says in its entry which node it is and when it was seen last; and what it answered, or its problem.
template <typename Message, typename Entry>
std::optional<Message> AnswerOf(const v1::AskNodesResponse::Node& node, Entry& entry) {
  entry.set_node(node.node());
  if (node.has_last_seen()) *entry.mutable_last_seen() = node.last_seen();
  Message answer;
  if (node.status().code() == 0 && answer.ParseFromString(node.response())) return answer;
  *entry.mutable_problem() = node.status();
  return std::nullopt;
}

}  // namespace

NodeService::Unary* NodeService::ExplainGroup(Context* context,
                                              const v1::ExplainGroupRequest* request,
                                              v1::ExplainGroupResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    v1::AskNodesRequest question;
    question.set_method("ExplainLocal");
    question.set_request(request->SerializeAsString());
    const std::string name = request->name();
    const std::optional<std::string> tenant =
        request->has_tenant() ? std::optional(request->tenant()) : std::nullopt;
    node_.coordination().Ask(question, [this, response, finish, name,
                                        tenant](absl::StatusOr<v1::AskNodesResponse> asked) {
      if (!asked.ok()) return finish(asked.status());
      response->set_name(name);
      response->set_coordinator(asked->coordinator());
      std::vector<v1::LocalExplanation> nodes;
      for (const v1::AskNodesResponse::Node& node : asked->nodes()) {
        v1::LocalExplanation one;
        if (node.status().code() == 0 && one.ParseFromString(node.response())) {
          const bool first = node.node() == asked->coordinator();
          nodes.insert(first ? nodes.begin() : nodes.end(), one);
        } else {
          response->add_unanswered(
              absl::StrCat("node ", node.node(), ": ", node.status().message()));
        }
      }
      Explain(nodes, tenant, *response);
      const bool known = response->has_group() || response->has_last_late();
      finish(known ? absl::OkStatus() : NoSuchGroup(node_, name));
    });
  });
}

NodeService::Unary* NodeService::GetTrace(Context* context, const v1::GetTraceRequest* request,
                                          v1::GetTraceResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    if (absl::Status bad = CheckTraceRequest(*request); !bad.ok()) return finish(bad);
    v1::AskNodesRequest question;
    question.set_method("TraceLocal");
    question.set_request(request->SerializeAsString());
    node_.coordination().Ask(
        question, [this, request, response, finish](absl::StatusOr<v1::AskNodesResponse> asked) {
          if (!asked.ok()) return finish(asked.status());
          for (const v1::AskNodesResponse::Node& node : asked->nodes()) {
            v1::LocalTrace one;
            if (node.status().code() == 0 && one.ParseFromString(node.response())) {
              response->mutable_traces()->MergeFrom(one.traces());
            } else {
              response->add_unanswered(
                  absl::StrCat("node ", node.node(), ": ", node.status().message()));
            }
          }
          const bool known = response->traces_size() > 0 ||
                             absl::c_any_of(KnownGroups(node_), [&](const GroupStatus& group) {
                               return group.spec.name == request->group();
                             });
          finish(known ? absl::OkStatus() : NoSuchGroup(node_, request->group()));
        });
  });
}

NodeService::Unary* NodeService::ListNodes(Context* context, const v1::ListNodesRequest* asked,
                                           v1::ListNodesResponse* response) {
  if (Unary* refused = Refused(context, *asked)) return refused;
  return AnswerLater(context, node_, [this, response](const Finish& finish) {
    v1::AskNodesRequest request;
    request.set_method("GetStatus");
    node_.coordination().Ask(request,
                             [response, finish](absl::StatusOr<v1::AskNodesResponse> asked) {
                               if (!asked.ok()) return finish(asked.status());
                               response->set_coordinator(asked->coordinator());
                               for (const v1::AskNodesResponse::Node& node : asked->nodes()) {
                                 v1::ListNodesResponse::Entry& entry = *response->add_nodes();
                                 if (auto status = AnswerOf<v1::GetStatusResponse>(node, entry))
                                   *entry.mutable_status() = *std::move(status);
                               }
                               finish(absl::OkStatus());
                             });
  });
}

NodeService::Unary* NodeService::ExamineNodes(Context* context,
                                              const v1::ExamineNodesRequest* request,
                                              v1::ExamineNodesResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    v1::AskNodesRequest question;
    question.set_method("ExamineLocal");
    question.set_request(request->SerializeAsString());
    node_.coordination().Ask(question,
                             [response, finish](absl::StatusOr<v1::AskNodesResponse> asked) {
                               if (!asked.ok()) return finish(asked.status());
                               response->set_coordinator(asked->coordinator());
                               for (const v1::AskNodesResponse::Node& node : asked->nodes()) {
                                 v1::ExamineNodesResponse::Entry& entry = *response->add_nodes();
                                 if (auto found = AnswerOf<v1::NodeExamination>(node, entry))
                                   *entry.mutable_found() = *std::move(found);
                               }
                               finish(absl::OkStatus());
                             });
  });
}

}  // namespace epd
