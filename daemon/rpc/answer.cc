#include "daemon/rpc/answer.h"

#include <string>
#include <utility>

namespace epd {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::ServerUnaryReactor* AnswerLater(grpc::CallbackServerContext* context, Node& node,
                                      std::function<void(Finish)> start) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Finish finish = [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); };
  if (!node.loop().Post([start = std::move(start), finish] { start(finish); })) {
    finish(absl::UnavailableError("epd is ending or overloaded; retry"));
  }
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
