// How every unary call gets to the control thread and back.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "absl/status/status.h"
#include "daemon/node/node.h"

namespace epd {

// Its text is made clean (text.h), and short enough for the trailers of an answer, which gRPC drops beyond 8 KiB.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Runs `fill` on the control thread and finishes the call with what it returns. UNAVAILABLE when
// epd is ending or its queue is full.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Node& node,
                                 std::function<absl::Status()> fill);

// The same after the worker's figures are fresh (or known to be stale).
grpc::ServerUnaryReactor* AnswerWithFigures(grpc::CallbackServerContext* context, Node& node,
                                            std::function<absl::Status()> fill);

// Serves a call that ends later: `start` runs on the control thread and calls `finish` exactly once, now
// or later.
using Finish = std::function<void(const absl::Status&)>;
grpc::ServerUnaryReactor* AnswerLater(grpc::CallbackServerContext* context, Node& node,
                                      std::function<void(Finish)> start);

}  // namespace epd
