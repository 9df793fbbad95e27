#include "absl/strings/str_cat.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::ListNodes(Context* context, const v1::ListNodesRequest*,
                                           v1::ListNodesResponse* response) {
  return AnswerLater(context, node_, [this, response](const Finish& finish) {
    v1::AskNodesRequest request;
    request.set_method("GetStatus");
    node_.coordination().Ask(
        request, [response, finish](absl::StatusOr<v1::AskNodesResponse> asked) {
          if (!asked.ok()) return finish(asked.status());
          response->set_coordinator(asked->coordinator());
          for (const v1::AskNodesResponse::Node& node : asked->nodes()) {
            v1::ListNodesResponse::Entry& entry = *response->add_nodes();
            entry.set_node(node.node());
            *entry.mutable_last_seen() = node.last_seen();
            const bool answered = node.status().code() == 0 &&
                                  entry.mutable_status()->ParseFromString(node.response());
            if (answered) continue;
            entry.clear_status();
            *entry.mutable_problem() = node.status();
          }
          finish(absl::OkStatus());
        });
  });
}

}  // namespace epd
