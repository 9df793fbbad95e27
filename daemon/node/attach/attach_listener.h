// The attach socket until a client has attached: accepts, checks who it is, waits for its Attach.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/attach/attach_session.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/packet/packet_channel.h"
#include "proto/epd/v1/attach.pb.h"

namespace epd {

// Control thread.
class AttachListener {
 public:
  static constexpr size_t kMaxQueuedPackets = 1024;  // That wait for one client.
  struct Limits {
    size_t unattached = 512;
    size_t unattached_per_uid = 256;
    absl::Duration deadline = absl::Seconds(10);  // From accept to Attach.
    size_t queued_bytes = 4 << 20;                // That wait for a client which does not read.
  };
  struct Options {
    AttachPolicy policy;
    std::function<Limits()> limits;  // At this moment.
  };
  // Somebody who may attach and has sent Attach.
  struct Arrival {
    PeerCredentials peer;
    std::unique_ptr<PacketChannel> channel;  // The loop does not watch it any more.
    v1::Attach attach;
  };
  using OnArrival = std::function<void(Arrival)>;

  // `loop` outlives this.
  AttachListener(Options options, EventLoop& loop, OnArrival on_arrival);
  ~AttachListener();

  // `listener`: a listening, non-blocking SEQPACKET socket. Errors as EventLoop::Add. Again with one that takes the first one's
  // place: whoever has connected to that is admitted.
  absl::Status Start(UniqueFd listener);

  // Takes what another program of this process has accepted; it has all the time to attach again.
  void Adopt(UniqueFd socket) { Admit(std::move(socket)); }
  // The listener's descriptor, -1 without one, and those of connections that have not attached.
  int fd() const { return listener_.get(); }
  std::vector<int> unattached() const;

  // Ends connections that did not attach in time.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // Refuses everybody who has connected or connects from now on, with `why`, and closes the
  // listener.
  void Stop(const absl::Status& why);

 private:
  struct Pending {
    PeerCredentials peer;
    std::unique_ptr<PacketChannel> channel;
    absl::Duration allowed;
    absl::Time deadline;
  };

  void OnListener();
  bool AcceptOne();
  void RefuseWithSpareFd();
  void Admit(UniqueFd socket);
  // Whether one more connection of `uid` may wait.
  absl::Status CheckRoom(uid_t uid, const Limits& limits) const;
  void OnPending(int fd);
  // Takes it out of what waits; nothing watches it any more.
  Pending Release(int fd);
  void Refuse(int fd, const absl::Status& why);

  const Options options_;
  EventLoop& loop_;
  const OnArrival on_arrival_;
  UniqueFd listener_;
  absl::Time accept_again_ = absl::InfiniteFuture();  // Finite: the listener rests until then.
  // Closed to accept one more and say why it is refused, when descriptors run out.
  UniqueFd spare_;
  absl::Status refusal_;  // When it is not OK, attaching is over.
  std::map<int, Pending> pending_;
};

// Tells a client that is connected why it is sent away. The caller closes the channel.
void SayGoodbye(PacketChannel& channel, const absl::Status& why);
// Does the same, and logs it, for a client that never had a session.
void RefuseClient(PacketChannel& channel, const PeerCredentials& peer, const absl::Status& why);

}  // namespace epd
