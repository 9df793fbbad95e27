// Asking the other nodes while nobody coordinates.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

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

  void AskOne(const std::string& node, const std::string& address,
              const v1::AskNodesRequest& request, const std::shared_ptr<Round>& round);

  Node& node_;
  std::vector<std::weak_ptr<Round>> rounds_;
  std::map<std::string, std::string> addresses_;  // By node, without this one.
};

}  // namespace epd
