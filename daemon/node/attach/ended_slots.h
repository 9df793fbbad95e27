// The op slots of sessions that have ended, until their memory is back.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "daemon/control/uid_limits.h"
#include "daemon/core/ids.h"
#include "daemon/node/attach/attach_session.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/shared_memory/page_processes.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// Whoever had the session may hold the segments for ever, so their pages are given back; by a process of their own, since he can make
// that wait, too (page_processes.h). Until they are they count as the user's. Of the loop's thread.
class EndedSlots {
 public:
  // `program`: PageProcesses'. `loop` outlives this.
  EndedSlots(std::string program, EventLoop& loop) : processes_(std::move(program)), loop_(loop) {}
  ~EndedSlots();

  // Its pages go at `until`, once whoever waits there has read why it ended.
  void Add(const PeerCredentials& peer, std::map<WorkerName, WorkerSlots> slots, absl::Time until);
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // Adds what of the uid's has ended.
  void AddUse(uid_t uid, UidUse& use) const;

  // Another program goes on in this process. EndProcesses: before Save; what has begun begins anew, here or there.
  void EndProcesses();
  void Save(v1::HandoverClients& out, OutgoingFds& fds) const;
  absl::Status Restore(const v1::HandoverClients& in, IncomingFds& fds);

 private:
  struct Ended {
    uid_t uid = 0;
    pid_t pid = 0;
    std::map<WorkerName, WorkerSlots> slots;
    absl::Time until;
    bool going = false;  // Its pages are being given back.
  };
  // Whether pages can be given back; it may be later.
  bool Start();
  void GiveBack(uint64_t id, Ended& ended, absl::Time now);
  void TakeDone(absl::Time now);

  std::map<uint64_t, Ended> ended_;  // In the order of their end.
  uint64_t next_ = 1;
  PageProcesses processes_;
  bool started_ = false;
  EventLoop& loop_;
};

}  // namespace epd
