// Asking the other nodes while nobody coordinates.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "daemon/tls/credentials.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd {

// To another epd: encrypted where this one has certificates.
std::shared_ptr<grpc::Channel> MakeClusterChannel(const std::string& address, const TlsFiles& tls);

// Knows the nodes that the last coordinator told of. Control thread.
class PeerQuestions {
 public:
  // `node` outlives this.
  explicit PeerQuestions(Node& node) : node_(node) {}

  using Nodes = google::protobuf::RepeatedPtrField<v1::ClusterNode>;
  // Replaces what was known; an older coordinator tells of none.
  void Take(const Nodes& nodes);

  // Asks this node and each that is known directly; `done` gets all of them within kAskPatience.
  void Ask(const v1::AskNodesRequest& request, OnAsked done);

  // Answers what is still open.
  void FinishAll(const absl::Status& status);

 private:
  struct Round;

  Node& node_;
  std::vector<std::weak_ptr<Round>> rounds_;
  std::map<std::string, std::string> addresses_;  // By node, without this one.
};

}  // namespace epd
