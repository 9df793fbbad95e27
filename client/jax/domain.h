// This process's ranks in one group of the daemon, and how they come back after a loss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "client/jax/groups.h"
#include "client/jax/membership.h"
#include "client/jax/runs.h"

namespace epd::jax {

// Attached, until a call meets the end of the session or the group. That call fails with the cause
// (once per loss), and so do all calls of its execution; the first later one joins again.
//
//   attached --(loss met by a call)--> lost --(next execution)--> attached
//
// Thread-safe.
class Domain {
 public:
  // Gives a living session, connecting if need be.
  using Connect = std::function<Status(std::shared_ptr<Session>*)>;

  Domain(const GroupConfig& config, std::uint32_t index, Connect connect);

  const std::string& name() const { return name_; }

  // Joins the group with all ranks held here. Blocks up to the forming deadline.
  Status Join();

  // See Groups::Begin.
  Status Begin(const Runs::Call& call, ActiveCall* active);
  void End(const Runs::Call& call, const std::shared_ptr<Membership>& membership,
           const Status& status);

  // Leaves the group for good; calls in flight get `grace_ms` to end.
  void Close(std::int64_t grace_ms);

 private:
  Status JoinLocked();
  // Notes that `membership` is gone; false if a newer one is there.
  void LoseLocked(const std::shared_ptr<Membership>& membership);
  Status LostStatus(const Status& cause, std::uint32_t rank) const;
  // Where a call was when it failed here, for its error.
  std::string Place(std::uint32_t rank) const;

  const GroupConfig config_;
  const std::uint32_t index_;
  const std::string name_;
  const Connect connect_;

  std::mutex mutex_;
  bool closed_ = false;
  std::shared_ptr<Membership> membership_;  // nullptr: lost and reported, or never joined.
  std::uint64_t num_memberships_ = 0;
  std::uint64_t last_epoch_ = 0;
  Runs runs_;
};

}  // namespace epd::jax
