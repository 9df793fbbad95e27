// The way to another epd, as a node of the cluster.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd {

// A channel of its own. With certificates it is encrypted, and they say who calls; without, each call brings a proof
// (link_proof.h) that Prove() has made.
class ClusterLink {
 public:
  // `address` is host:port.
  ClusterLink(const std::string& address, const Node& node);

  v1::Cluster::Stub& stub() { return *stub_; }

  // Gives `then` the metadata kNodeProofKey of its next calls ("": none is needed), or why the other end is not believed or cannot be reached. Within `patience`; at
  // once, or on gRPC's threads, also when this object is gone.
  using Proven = std::function<void(absl::StatusOr<std::string> proof)>;
  void Prove(absl::Duration patience, Proven then);

 private:
  const std::string node_;
  const std::string secret_;
  std::shared_ptr<v1::Cluster::Stub> stub_;
};

}  // namespace epd
