// The gRPC side of epd: services, sockets, health, reflection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/node/node.h"

namespace epd {

// Serves Node, Cluster, grpc.health.v1 and reflection on the node's Unix socket and, with --listen,
// on TCP. Uses gRPC's own threads; every call is handed to the control thread.
//
// Who may call: the Unix socket has mode 0600, so epd's user and root. TCP: link_policy.h.
class RpcServer {
 public:
  // `node` outlives this.
  explicit RpcServer(Node& node);
  ~RpcServer();

  // Call before Node::Run, on the thread that will run it.
  //   FAILED_PRECONDITION  an address cannot be bound
  //   as CheckListen       TLS files, or an address that needs them
  absl::Status Start();
  // "" without TCP, else host:port with the port that was bound.
  const std::string& listen_address() const;

  // What grpc.health.v1 says about the process as a whole. Control thread.
  void SetServing(bool serving);

  // Ends all calls. After Node::Run.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace epd
