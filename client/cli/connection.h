// A connection to one node's epd.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/options.h"
#include "client/cli/socket_search.h"
#include "proto/epd/v1/node.grpc.pb.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"

namespace epd::cli {

struct Connection {
  std::string target;  // For people: "/run/epd/epd-grpc.sock" or "host:port".
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<epd::v1::Node::Stub> node;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

// Why there is no connection; `error` says where was looked and what to do.
struct ConnectError {
  ExitCode code = ExitCode::kCannotConnect;
  std::string error;
};

struct ConnectResult {
  std::unique_ptr<Connection> connection;  // NULL: see `failure`.
  ConnectError failure;
};

// Finds the daemon. Answers at once: for a socket it says what the kernel says; a TCP address is
// tried by the first call.
ConnectResult Connect(const Options& options, const SearchContext& search);

// Sets the deadline of a call, and lets it fail instead of wait while nobody listens.
void PrepareCall(grpc::ClientContext& context, absl::Duration timeout);

// A failed call in words: what was asked of whom, what came back, what to do.
std::string DescribeFailure(const Connection& connection, const std::string& call,
                            const grpc::Status& status, absl::Duration timeout);

}  // namespace epd::cli
