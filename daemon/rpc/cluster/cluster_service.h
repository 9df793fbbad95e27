// epd.v1.Cluster: this epd as the coordinator of other nodes.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "daemon/rpc/caller_gate.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/node_questions.h"
#include "daemon/rpc/cluster/peer_questions.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd {

class ClusterStream;

// Who may call: nodes (roles.h). A report is checked field by field; one that makes no sense ends its
// stream and nothing else.
class ClusterService final : public v1::Cluster::CallbackService, public ClusterStreams {
 public:
  // Both outlive this.
  ClusterService(Node& node, const CallerGate& gate);
  ~ClusterService() override;

  // Any thread.
  grpc::ServerUnaryReactor* Challenge(grpc::CallbackServerContext* context,
                                      const v1::ChallengeRequest* request,
                                      v1::ChallengeResponse* response) override;
  grpc::ServerUnaryReactor* ReadClock(grpc::CallbackServerContext* context,
                                      const v1::ReadClockRequest* request,
                                      v1::ReadClockResponse* response) override;
  grpc::ServerBidiReactor<v1::NodeReport, v1::ClusterView>* Sync(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* AskNodes(grpc::CallbackServerContext* context,
                                     const v1::AskNodesRequest* request,
                                     v1::AskNodesResponse* response) override;

  // Control thread.
  void Send(const ClusterView& view) override;
  void Ask(const v1::AskNodesRequest& request, OnAsked done) override;
  void FinishAll(const absl::Status& status);

  // Where this epd takes calls of others; "": nowhere.
  void SetOwnAddress(const std::string& address) { own_address_ = address; }
  const std::string& own_address() const { return own_address_; }
  // Whom to ask while nobody coordinates.
  PeerQuestions& peers() { return peers_; }

 private:
  // All that are connected, this one first.
  PeerQuestions::Nodes ConnectedNodes() const;

  void Begin(const std::shared_ptr<ClusterStream>& stream);
  void Arrived(const std::weak_ptr<ClusterStream>& stream, v1::NodeReport report);
  void TakeArrived();
  // An error has ended the stream.
  absl::StatusOr<NodeReport> Check(ClusterStream& stream, const v1::NodeReport& message);
  absl::Status Introduce(ClusterStream& stream, const NodeReport& report);

  Node& node_;
  const CallerGate& gate_;
  NodeQuestions asking_;
  PeerQuestions peers_;
  std::string own_address_;
  std::vector<std::shared_ptr<ClusterStream>> streams_;  // Control thread.
  EncodedFormations formations_;                         // Control thread.

  struct Arrival {
    std::weak_ptr<ClusterStream> stream;
    v1::NodeReport report;
  };
  absl::Mutex mutex_;
  std::vector<Arrival> arrived_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace epd
