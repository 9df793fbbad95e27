#include "daemon/rpc/answer.h"

#include <string>
#include <utility>

#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      text::Clean(std::string(status.message()), limits::kErrorBytes));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::ServerUnaryReactor* AnswerLater(grpc::CallbackServerContext* context, Node& node,
                                      std::function<void(Finish)> start) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Finish finish = [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); };
  const absl::Status taken =
      node.loop().PostRequest([start = std::move(start), finish] { start(finish); });
  if (!taken.ok()) finish(taken);
  return reactor;
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Node& node,
                                 std::function<absl::Status()> fill) {
  return AnswerLater(context, node,
                     [fill = std::move(fill)](const Finish& finish) { finish(fill()); });
}

grpc::ServerUnaryReactor* AnswerWithFigures(grpc::CallbackServerContext* context, Node& node,
                                            std::function<absl::Status()> fill) {
  return AnswerLater(context, node, [&node, fill = std::move(fill)](const Finish& finish) {
    node.WithFreshFigures([fill, finish] { finish(fill()); });
  });
}

}  // namespace epd
