// The way to the epd of --coordinator: keeps one Sync stream, and opens it again with back-off.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/core/backoff.h"
#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "daemon/rpc/cluster/clock_probe.h"
#include "daemon/rpc/cluster/cluster_link.h"
#include "daemon/rpc/cluster/cluster_service.h"
#include "daemon/rpc/cluster/coordinator_stream.h"

namespace epd {

// Control thread, but for the callbacks of the stream, which only post.
class RemoteCoordinator final : public CoordinatorLink {
 public:
  // `address` is host:port. `node` outlives this. `on_refused`: nobody listens there; may be null.
  // `cluster` outlives this, too: it is asked for the other nodes when the coordinator cannot be.
  RemoteCoordinator(const std::string& address, Node& node, ClusterService& cluster,
                    std::function<void()> on_refused = nullptr);

  void Send(const NodeReport& report) override;
  void Tick(absl::Time now) override;
  absl::Time NextDeadline() const override;
  void Ask(const v1::AskNodesRequest& request, OnAsked done) override;
  std::optional<v1::ClockOffset> CompareClocks() override;

 private:
  void OnQuestion(const v1::ClusterQuestion& question);
  v1::NodeReport Hello() const;
  // Proves who this node is, then starts the stream.
  void Open(absl::Time now);
  void Start(uint64_t stream_number, const absl::StatusOr<std::string>& proof);
  void OnView(uint64_t stream_number, const v1::ClusterView& view);
  void OnEnd(uint64_t stream_number, const absl::Status& status);
  void Lost(const absl::Status& why);

  const std::string address_;
  Node& node_;
  ClusterService& cluster_;
  const std::function<void()> on_refused_;
  const std::string no_ids_;  // See WhyNoIds.
  ClusterLink link_;
  ClockProbe clock_;
  Backoff backoff_;
  uint64_t stream_number_ = 0;  // Of the newest stream; what older ones still say is ignored.
  bool connected_ = false;      // A view has come on this stream.
  absl::StatusCode lost_with_ = absl::StatusCode::kOk;  // What the last try ended with, if it has.
  absl::Time opened_at_;
  absl::Time last_heard_;
  absl::Time next_try_ = absl::InfinitePast();
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // Posted work looks whether it is gone.
  std::unique_ptr<CoordinatorStream> stream_;
};

}  // namespace epd
