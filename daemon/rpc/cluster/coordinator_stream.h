// One Sync stream to the coordinator, seen from the node.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd {

// Sends the newest report, hands over views. Callbacks come from gRPC's threads, one at a time per
// kind.
class CoordinatorStream final : public grpc::ClientBidiReactor<v1::NodeReport, v1::ClusterView> {
 public:
  using OnView = std::function<void(v1::ClusterView)>;
  using OnEnd = std::function<void(const absl::Status&)>;

  // Opens the stream with `hello`. `on_end` is the last call.
  CoordinatorStream(v1::Cluster::Stub& stub, v1::NodeReport hello, OnView on_view, OnEnd on_end);
  // Cancels the stream and waits until gRPC has let go of it.
  ~CoordinatorStream() override;

  // Sends `report`, or replaces one that has not gone out yet.
  void Offer(v1::NodeReport report);
  // Adds `answer` to what has not gone out yet, or sends it with `hello`.
  void Answer(v1::NodeReport hello, v1::ClusterAnswer answer);
  // Ends it soon; `on_end` follows.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::ClientContext context_;
  const OnView on_view_;
  const OnEnd on_end_;
  v1::ClusterView incoming_;
  absl::Notification done_;

  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::NodeReport> next_ ABSL_GUARDED_BY(mutex_);
  v1::NodeReport current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace epd
