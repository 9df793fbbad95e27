// Large moves of rows, on a thread of their own: whoever answers calls does not let others wait for them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/backend/backend.h"

namespace epd {

// One move at a time, of each group in turn and of a group in order.
class MoveThread {
 public:
  using Move = std::function<absl::Status()>;

  MoveThread() : thread_([this] { Run(); }) {}
  ~MoveThread() { End(); }
  MoveThread(const MoveThread&) = delete;
  MoveThread& operator=(const MoveThread&) = delete;

  // What `move` uses stays as it is until TakeMoved has named it, or End has returned.
  void Add(MoveId id, uint64_t group_id, Move move) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have ended since the last time.
  std::vector<MovedRows> TakeMoved() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether TakeMoved will name any more.
  bool busy() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The move that it is at comes to its end, and the others never begin.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    MoveId id = 0;
    Move move;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || !waiting_.empty(); }

  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::deque<Waiting>> waiting_
      ABSL_GUARDED_BY(mutex_);  // By group; none is empty.
  uint64_t last_group_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;  // That nobody has taken yet.
  std::vector<MovedRows> moved_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace epd
