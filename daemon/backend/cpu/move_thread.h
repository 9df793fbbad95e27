// Large moves of rows, on a thread of their own: whoever answers calls does not let others wait for them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/cpu/move_turns.h"
#include "proto/machine/thread.h"

namespace epd {

// One turn after another (move_turns.h). The thread starts with the first move; where it cannot be had, a move ends with
// RESOURCE_EXHAUSTED, and the next one tries again.
class MoveThread {
 public:
  // Does a part of a move that others can wait for: some 0.2 ms. Its status once it has ended.
  using Move = std::function<std::optional<absl::Status>()>;

  // `turn`: how long a move may go on while others wait; one part of it at least.
  explicit MoveThread(absl::Duration turn = absl::Milliseconds(1)) : turn_(turn) {}
  ~MoveThread() { End(); }
  MoveThread(const MoveThread&) = delete;
  MoveThread& operator=(const MoveThread&) = delete;

  // What `move` uses stays as it is until TakeMoved has named it, or End has returned.
  void Add(MoveId id, uint32_t uid, uint64_t group_id, Move move) ABSL_LOCKS_EXCLUDED(mutex_);
  // It ends with ABORTED after the part that it is at, if it is not done then. Nothing changes for one that has ended.
  void Cancel(MoveId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have ended since the last time.
  std::vector<MovedRows> TakeMoved() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether TakeMoved will name any more.
  bool busy() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The move whose turn it is comes to the end of its turn, and none goes on.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<absl::Status> Go(const Move& move) const;
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || !moves_.empty(); }

  const absl::Duration turn_;
  mutable absl::Mutex mutex_;
  std::map<MoveId, Move> moves_ ABSL_GUARDED_BY(mutex_);  // Have not ended.
  MoveTurns turns_ ABSL_GUARDED_BY(mutex_);               // Of these, but for
  std::deque<MoveId> cancelled_ ABSL_GUARDED_BY(mutex_);  // ... those that end next.
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;           // That nobody has taken yet.
  std::vector<MovedRows> moved_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace epd
