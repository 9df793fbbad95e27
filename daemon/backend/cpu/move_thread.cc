#include "daemon/backend/cpu/move_thread.h"

#include <chrono>
#include <utility>

namespace epd {

void MoveThread::Add(MoveId id, uint32_t uid, uint64_t group_id, Move move) {
  const int error = thread_.joinable() ? 0
                                       : StartThread(
                                             {"epd-moves"}, [this] { Run(); }, &thread_);
  absl::MutexLock lock(&mutex_);
  ++num_open_;
  if (error != 0) {
    moved_.push_back({id, absl::ResourceExhaustedError(WhyNoThread("epd-moves", error))});
    return;
  }
  moves_[id] = std::move(move);
  turns_.Add(id, uid, group_id);
}

void MoveThread::Cancel(MoveId id) {
  absl::MutexLock lock(&mutex_);
  if (turns_.Remove(id)) cancelled_.push_back(id);
}

std::vector<MovedRows> MoveThread::TakeMoved() {
  absl::MutexLock lock(&mutex_);
  num_open_ -= moved_.size();
  return std::exchange(moved_, {});
}

bool MoveThread::busy() const {
  absl::MutexLock lock(&mutex_);
  return num_open_ > 0;
}

void MoveThread::End() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

// What a move holds is given back here, too, without the lock: that takes its time.
void MoveThread::Run() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &MoveThread::HasWork));
    if (ends_) return;
    const bool is_cancelled = !cancelled_.empty();
    const MoveId id = is_cancelled ? cancelled_.front() : turns_.Next();
    const auto entry = moves_.find(id);
    Move move = std::move(entry->second);
    mutex_.Unlock();
    std::optional<absl::Status> ended = absl::AbortedError("the operation has failed");
    if (!is_cancelled) ended = Go(move);
    if (ended.has_value()) move = nullptr;
    mutex_.Lock();
    if (!ended.has_value()) {
      entry->second = std::move(move);
      continue;
    }
    turns_.Remove(id);
    std::erase(cancelled_, id);
    moves_.erase(entry);
    moved_.push_back({id, *std::move(ended)});
  }
}

std::optional<absl::Status> MoveThread::Go(const Move& move) const {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(turn_);
  std::optional<absl::Status> ended;
  do {
    ended = move();
  } while (!ended.has_value() && std::chrono::steady_clock::now() < end);
  return ended;
}

}  // namespace epd
