#include "daemon/backend/cpu/move_thread.h"

#include <utility>

namespace epd {

void MoveThread::Add(MoveId id, uint64_t group_id, Move move) {
  absl::MutexLock lock(&mutex_);
  ++num_open_;
  waiting_[group_id].push_back({id, std::move(move)});
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

void MoveThread::Run() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &MoveThread::HasWork));
    if (ends_) return;
    auto group = waiting_.upper_bound(last_group_);
    if (group == waiting_.end()) group = waiting_.begin();
    last_group_ = group->first;
    Waiting next = std::move(group->second.front());
    group->second.pop_front();
    if (group->second.empty()) waiting_.erase(group);
    mutex_.Unlock();
    absl::Status status = next.move();
    next.move = nullptr;
    mutex_.Lock();
    moved_.push_back({next.id, std::move(status)});
  }
}

}  // namespace epd
