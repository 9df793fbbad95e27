// Sends control's effects to clients, workers, other epds and operators: the one switch.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "daemon/control/node_effects.h"
#include "daemon/control/rendezvous.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/group_history.h"
#include "daemon/node/loop/event_sink.h"
#include "daemon/node/request_deduplicator.h"
#include "daemon/node/workers/worker_table.h"

namespace epd {

class EffectSender {
 public:
  // Where effects go; all outlive this.
  struct Targets {
    NodeId self;
    const std::string& cluster_secret;
    AttachServer& clients;
    WorkerTable& workers;
    RequestDeduplicator& requests;
    EventSink events;  // Of effects that cannot be sent.
    std::function<void(const NodeReport&)> send_report;
    std::function<void(const ClusterView&)> send_view;
    std::function<void()> shutdown_done;
  };

  explicit EffectSender(Targets targets) : to_(std::move(targets)) {}

  void Send(const NodeEffect& effect);
  void Send(const RendezvousEffect& effect);

  const GroupHistory& history() const { return history_; }
  GroupHistory& history() { return history_; }

 private:
  struct NodeSwitch;
  // One that does not fit into a message has failed, for its group alone.
  void Start(const StartTenant& effect);
  // Whether the clients of all its sessions here take landing arenas.
  bool TakeLandingArenas(const StartTenant& effect) const;
  // Which of this node's workers read each other's memory, if they can, in a group over several nodes.
  void Reply(const ReplyJoined& effect);
  void LogJoined(const ReplyJoined& effect) const;
  // The session's slots for the GPUs' workers of `effect`, where its Join is answered.
  PacketChannel::Fds AddSlots(const ReplyJoined& effect, v1::Joined& joined);
  // The arenas that the workers of `effect` made for the session.
  absl::StatusOr<PacketChannel::Fds> TakeArenas(const ReplyJoined& effect, v1::Joined& joined);

  Targets to_;
  GroupHistory history_;
};

}  // namespace epd
