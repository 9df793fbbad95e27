// One session with one epd: the attach socket, the op slots, and the groups joined through it.
//
// Who reads the socket: whoever needs a message does, one at a time (Await), so that a process that
// only connected and joined has no thread of ours. With the first operation one watchdog starts and
// reads for good: it carries out re-formations, and when epd is gone it ends all waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "client/c/attach_messages.h"
#include "client/c/attach_socket.h"
#include "client/c/group.h"
#include "client/c/mapping.h"
#include "client/c/mutex.h"
#include "client/c/slot_pool.h"
#include "proto/machine/thread.h"

namespace epd::client {

// A worker whose epd is gone answers the open submissions from the outcome records; what it has not
// answered after this time is answered here.
inline constexpr std::chrono::milliseconds kPoisonDelay{200};

// Safe from any thread of the process that made it. In a forked child every call is
// FAILED_PRECONDITION, and the child's copy of the socket is closed: the session stays the
// parent's.
class Session {
 public:
  // Attaches to the daemon at `path`.
  //   errors of AttachSocket::Connect
  //   UNAVAILABLE    the daemon is on its way out, or did not answer: try again
  //   UNIMPLEMENTED  no common version
  //   DATA_LOSS      what answers is no epd
  static Status Attach(const std::string& path, const std::string& client_name,
                       Clock::time_point deadline, std::shared_ptr<Session>* session);
  ~Session();

  // OK while the session lives. Never blocks.
  Status Check();

  // Takes the ranks of join.ranks and waits until the group is READY. `join.request_id` is filled
  // in here. `carried`: see epd_join_args::plans; zeros: nothing.
  Status JoinGroup(Join join, const PlanIds& carried, std::shared_ptr<Group>* group);

  // Ends the calls in flight and gives the ranks back.
  Status LeaveGroup(Group& group);

  // Ends the session. Calls in flight in other threads fail.
  void Disconnect();

  // After Ctrl-C in a wait: ends the session, so that the other ranks hear of it at once. CANCELLED.
  Status EndInterrupted();

  // To be called before the first arm of each call.
  //   FAILED_PRECONDITION  in a forked child
  //   RESOURCE_EXHAUSTED   no thread for the watchdog can be had: the call tells the other ranks so
  Status BeforeCall();
  // Before a call of `group`. One that a lost rank's death would refuse hears first what epd has sent so far: that all
  // ranks are there again goes out before any of them is told that it has joined.
  Status BeforeCallOf(const Group& group);

  // After a failed call: waits, for at most a moment, until what epd has sent so far is handled.
  // epd says that a group is formed anew, or that the session ends, before it ends the calls; so
  // the caller's next call already knows.
  void Settle();

  // Whether this is another process than the one that attached; then the copied descriptors are
  // closed.
  bool InForkedChild();

  // Why the session ended; OK while it lives.
  Status lost();

  const std::string& path() const { return path_; }

 private:
  struct PendingRequest {
    std::shared_ptr<Group> group;  // Of a join.
    PlanIds carried;               // Likewise.
    bool done = false;
    Status status;
  };

  Session(std::string path, AttachSocket socket);

  // Takes the answer to Attach.
  Status TakeAttached(Clock::time_point deadline);

  // Waits, reading the socket where no other thread does, until `done()`, the session is lost, or
  // `deadline`.
  void Await(Clock::time_point deadline, const std::function<bool()>& done) EPD_REQUIRES(mutex_);
  // Reads and handles one datagram. False: none came until `deadline`.
  bool ReadOne(Clock::time_point deadline);
  bool HandleOne();
  // Ends the session where there is no memory to go on with: nothing of what epd says may be left out, and whoever waits for
  // this process hears that it is gone.
  void LoseForMemory() noexcept;
  Status TryJoinGroup(Join join, const PlanIds& carried, std::shared_ptr<Group>* group);
  Status TryLeaveGroup(Group& group);

  void Handle(Joined& joined, std::vector<UniqueFd>& fds) { TakeJoined(joined, fds, {}); }
  void Handle(JoinFailed& failed, std::vector<UniqueFd>&);
  void Handle(Left& left, std::vector<UniqueFd>&);
  void Handle(Reform& reform, std::vector<UniqueFd>&);
  void Handle(GroupEnded& ended, std::vector<UniqueFd>&);
  void Handle(GroupDraining& draining, std::vector<UniqueFd>&);
  void Handle(Goodbye& goodbye, std::vector<UniqueFd>&);
  void Handle(Attached&, std::vector<UniqueFd>&) {}
  void Handle(UnknownMessage&, std::vector<UniqueFd>&) {}

  // `bad`: why this process cannot take part, which the other ranks are told.
  void TakeJoined(Joined& joined, std::vector<UniqueFd>& fds, const Status& bad);
  Status MakeFormation(const Joined& joined, const PlanIds& carried, std::vector<UniqueFd>& fds,
                       std::shared_ptr<const Formation>* formation);
  // Keeps the slots that came with `joined`, the first of `fds`.
  Status TakeSlots(const Joined& joined, std::vector<UniqueFd>& fds);
  // Those of each rank's worker, by rank.
  Status FindSlots(const Joined& joined, std::vector<std::shared_ptr<SlotPool>>* slots);
  Status MapArena(const UniqueFd& fd, const JoinedArena& arena, Formation::Arena* mapped);
  Status TakeArenas(const Joined& joined, std::vector<UniqueFd>& fds, Formation& formation);
  Status TakeLandingArena(const JoinedArena& arena, const UniqueFd& fd, Formation& formation);
  void Finish(uint64_t request_id, Status status);
  std::shared_ptr<Group> FindGroup(uint64_t group_id);
  void Lose(Status cause);
  Status StartWatchdog();
  void Watch();

  const std::string path_;
  const int pid_;
  AttachSocket socket_;
  std::shared_ptr<SessionSlots> cpu_slots_;  // Set once, by Attach.
  Attached attached_;
  std::atomic<bool> watched_ = false;
  std::atomic<bool> abandoned_ = false;
  std::atomic<bool> handling_ = false;  // From before a datagram is taken until it is handled.

  Mutex mutex_;
  CondVar changed_;
  bool reading_ EPD_GUARDED_BY(mutex_) = false;
  bool closing_ EPD_GUARDED_BY(mutex_) = false;
  Status goodbye_ EPD_GUARDED_BY(mutex_);
  Status lost_ EPD_GUARDED_BY(mutex_);
  uint64_t last_request_id_ EPD_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, PendingRequest> pending_ EPD_GUARDED_BY(mutex_);
  // By the worker's name.
  std::map<std::string, std::shared_ptr<SessionSlots>> further_slots_ EPD_GUARDED_BY(mutex_);
  // By group id.
  std::map<uint64_t, std::shared_ptr<Group>> groups_ EPD_GUARDED_BY(mutex_);
  // Arenas that several groups share are mapped once: by device, inode, writable.
  std::map<std::tuple<uint64_t, uint64_t, bool>, std::weak_ptr<const Mapping>> mappings_
      EPD_GUARDED_BY(mutex_);
  Thread watchdog_;
};

}  // namespace epd::client
