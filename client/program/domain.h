// This process's ranks in one group of the daemon, and how they come back after a loss.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "client/c/mutex.h"
#include "client/program/group_config.h"
#include "client/program/joined_group.h"
#include "client/program/runs.h"

namespace epd::program {

// Attached, until a call finds the session ended, or the group, other than by an operator. That call fails with the cause (once
// per loss), and so do all calls of its execution; the first later one joins again. A node's daemon
// that stops in order loses nothing: every operation has happened on all ranks or on none, so calls
// join again and are repeated, and their executions go on.
//
//   attached --(loss found by a call)--> lost --(next execution)--> attached
//   attached --(stop in order)--> carried over --(any call)--> attached
//
// Joining again waits for the daemon, up to the group's reconnect timeout.
//
// Thread-safe.
class Domain {
 public:
  // Gives a living session, connecting if need be.
  using Connect = std::function<Status(std::shared_ptr<Session>*)>;

  // `ranks`: those to join with, each with its device.
  Domain(std::shared_ptr<const GroupConfig> config, std::uint32_t index,
         std::map<std::uint32_t, std::string> ranks, Connect connect);

  const GroupConfig& config() const { return *config_; }
  const std::string& name() const { return name_; }
  std::uint32_t first_rank() const { return ranks_.begin()->first; }
  // Of the last join; 0 before the first.
  std::uint64_t epoch() const { return last_epoch_.load(std::memory_order_relaxed); }
  // One of EPD_PROGRAM_*, and the epoch as the group is formed now. Does not wait for a join.
  int State(std::uint64_t* epoch) const;

  // Whether a call may begin without waiting for a join, as far as is known: a loss that nobody has found yet is found by Begin.
  bool IsJoined() const;

  // Joins the group with all ranks held here. Blocks up to the forming deadline.
  Status Join();

  // A call that has begun, to be ended by End.
  struct Begun {
    std::shared_ptr<JoinedGroup> joined;
    epd_group* group = nullptr;
    CallNumber number;
    Status refusal;  // Not OK: all ranks are to be told so, in place of the call.
  };
  // See ActiveCall. Nothing begins where it has to join first and `may_wait` not.
  Status Begin(const Runs::Call& call, bool may_wait, Begun* begun);
  bool End(const Runs::Call& call, const std::shared_ptr<JoinedGroup>& joined,
           const Status& status);

  // The group for a call that is begun and ended unseen. A loss is reported once; then it joins again.
  Status Living(std::uint32_t rank, std::shared_ptr<JoinedGroup>* joined);

  // Calls begun so far, and whether any of them is under way.
  struct Activity {
    std::uint64_t num_begun = 0;
    bool busy = false;
    friend bool operator==(const Activity&, const Activity&) = default;
  };
  Activity activity() const;

  // Calls that wait for a daemon to come back fail; so do later ones that would.
  void StopWaiting() { closing_ = true; }
  // Leaves the group for good; calls under way fail.
  void Close();

 private:
  Status JoinLocked() EPD_REQUIRES(mutex_);
  // Joins if it is not joined, for as long as the daemon may come back.
  Status JoinAgainLocked(std::uint32_t rank) EPD_REQUIRES(mutex_);
  // The group is gone: lets everything go on in the next join if nothing is lost with it.
  void LeaveBehind(const JoinedGroup& gone, bool in_order) EPD_REQUIRES(mutex_);
  // Why no call may begin: the group was left, or it is gone. A group that has ended is moved to `lost`.
  Status CheckLocked(std::uint32_t rank, std::shared_ptr<JoinedGroup>* lost) EPD_REQUIRES(mutex_);
  // Where a call was when it failed here, for its error.
  std::string Place(std::uint32_t rank) const EPD_REQUIRES(mutex_);

  const std::shared_ptr<const GroupConfig> config_;
  const std::map<std::uint32_t, std::string> ranks_;
  const std::string name_;
  const Connect connect_;
  std::atomic<bool> closing_ = false;  // Ends waits for the daemon.

  mutable client::Mutex mutex_;
  bool closed_ EPD_GUARDED_BY(mutex_) = false;
  // nullptr: lost and reported, or never joined.
  std::shared_ptr<JoinedGroup> joined_ EPD_GUARDED_BY(mutex_);
  std::uint64_t num_joins_ EPD_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> last_epoch_ = 0;  // Written under the mutex, as the next.
  std::atomic<bool> joining_ = false;
  // What joined_ was last, for State: a join holds the mutex for long.
  mutable client::Mutex seen_mutex_;
  std::weak_ptr<JoinedGroup> seen_ EPD_GUARDED_BY(seen_mutex_);
  epd_plans plans_ EPD_GUARDED_BY(mutex_) = {};  // That are good in the next join, too.
  std::uint64_t num_begun_ EPD_GUARDED_BY(mutex_) = 0;
  Runs runs_ EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::program
