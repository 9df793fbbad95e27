// The gRPC side of epd: services, sockets, health, reflection.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/node/node.h"
#include "daemon/rpc/caller_gate.h"
#include "daemon/rpc/cluster/chosen_coordinator.h"
#include "daemon/rpc/cluster/cluster_service.h"
#include "daemon/rpc/cluster/remote_coordinator.h"
#include "daemon/rpc/node_api/group_watchers.h"
#include "daemon/rpc/node_api/node_service.h"
#include "daemon/rpc/unix_callers.h"

namespace epd {

// Serves Node, Cluster, grpc.health.v1 and reflection on the node's Unix socket and, with --listen,
// on TCP. Uses gRPC's own threads; every call is handed to the control thread.
//
// Who may call what: roles.h. Where without TLS: link_policy.h.
class RpcServer {
 public:
  // `node` outlives this.
  explicit RpcServer(Node& node);
  ~RpcServer() { Stop(); }

  // Call before Node::Run, on the thread that will run it. `before`: where the program that this one replaces listened, or "";
  // a port that the settings leave open is the same.
  //   FAILED_PRECONDITION  an address cannot be bound
  //   RESOURCE_EXHAUSTED   a thread
  //   as CheckLinks        an address that needs TLS
  absl::Status Start(const std::string& before);
  // "" without TCP, else host:port with the port that was bound.
  const std::string& listen_address() const { return listen_address_; }

  // Whether the file of the node's Unix socket is still this one's. Control thread.
  bool has_socket_file() const { return callers_.has_file(); }
  // Listens there anew, where it is not. Errors as PrepareFolderOf, ListenAt, EventLoop::Add. Control thread.
  absl::Status ListenAgain();

  // What grpc.health.v1 says about the process as a whole. Control thread.
  void SetServing(bool serving);

  // Ends all calls. After Node::Run.
  void Stop();

 private:
  // Control thread, after it handled something.
  void OnChange();
  void WaitForCalls();

  Node& node_;
  GroupWatchers watchers_;
  UnixCallers callers_;
  const CallerGate gate_;
  NodeService service_;
  ClusterService cluster_;
  std::unique_ptr<RemoteCoordinator> coordinator_;  // With --coordinator.
  std::unique_ptr<ChosenCoordinator> chosen_;       // With --rendezvous.
  std::map<std::string, bool> serving_;  // As told to the health service. Control thread.
  std::unique_ptr<grpc::Server> server_;
  std::string listen_address_;
};

}  // namespace epd
