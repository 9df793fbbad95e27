// One Sync stream to the coordinator, seen from the node.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "daemon/rpc/newest_writer.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd {

// Sends the newest report, hands over views. Callbacks come from gRPC's threads, one at a time per
// kind.
class CoordinatorStream final
    : public NewestWriter<grpc::ClientBidiReactor<v1::NodeReport, v1::ClusterView>,
                          v1::NodeReport> {
 public:
  using OnView = std::function<void(v1::ClusterView)>;
  using OnEnd = std::function<void(const absl::Status&)>;

  // Opens the stream with `hello`; `proof`: ClusterLink::Prove. `on_end` is the last call.
  CoordinatorStream(v1::Cluster::Stub& stub, const std::string& proof, v1::NodeReport hello,
                    OnView on_view, OnEnd on_end);
  // Cancels the stream and waits until gRPC has let go of it.
  ~CoordinatorStream() override;

  // Does as Offer, but keeps answers that have not gone out yet.
  void OfferReport(v1::NodeReport report);
  // Adds `answer` to what has not gone out yet, or sends it with `hello`.
  void Answer(v1::NodeReport hello, v1::ClusterAnswer answer);
  // Ends it soon; `on_end` follows.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  const OnView on_view_;
  const OnEnd on_end_;
  v1::ClusterView incoming_;
  absl::Notification done_;
};

}  // namespace epd
