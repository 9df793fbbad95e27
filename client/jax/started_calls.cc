#include "client/jax/started_calls.h"

#include <cstring>
#include <utility>

namespace epd::jax {
namespace {

constexpr std::uint64_t kPart = std::uint64_t{1} << 24;  // What a float32 holds exactly.

// Empty arrays are null in XLA's hands.
void CopyBytes(void* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace

Bytes::Bytes(const void* from, std::size_t size) : Bytes(size) { CopyBytes(data(), from, size); }

void StartedCall::End(client::Status status) {
  const client::Status* said = nullptr;  // Not copied, which takes memory; it stays as it is.
  Then then;
  {
    const client::MutexLock lock(mutex_);
    said = &ended_.emplace(std::move(status));
    then = std::exchange(then_, nullptr);
  }
  if (then != nullptr) then(*said);
}

void StartedCall::Await(Then then) {
  const client::Status* said = nullptr;
  {
    const client::MutexLock lock(mutex_);
    if (!ended_.has_value()) {
      then_ = std::move(then);
      return;
    }
    said = &*ended_;
  }
  then(*said);
}

bool StartedCall::Copy(void* rows, std::size_t rows_bytes, void* weights,
                       std::size_t weights_bytes) const {
  if (rows_bytes != rows_.size() || weights_bytes != weights_.size()) return false;
  CopyBytes(rows, rows_.data(), rows_bytes);
  CopyBytes(weights, weights_.data(), weights_bytes);
  return true;
}

StartedCalls& StartedCalls::Shared() {
  static StartedCalls* const shared = new StartedCalls;
  return *shared;
}

std::uint64_t StartedCalls::Add(std::shared_ptr<StartedCall> call, Time now) {
  std::map<std::uint64_t, Known> forgotten;  // Ends after the lock.
  const client::MutexLock lock(mutex_);
  while (!known_.empty() && known_.begin()->second.since + kKept < now) {
    forgotten.insert(known_.extract(known_.begin()));
  }
  last_ = last_ + 1 == kLimit ? 1 : last_ + 1;
  known_.insert_or_assign(last_, Known{std::move(call), now});
  return last_;
}

std::shared_ptr<StartedCall> StartedCalls::Take(std::uint64_t number) {
  const client::MutexLock lock(mutex_);
  const auto found = known_.find(number);
  if (found == known_.end()) return nullptr;
  std::shared_ptr<StartedCall> call = std::move(found->second.call);
  known_.erase(found);
  return call;
}

std::size_t StartedCalls::size() const {
  const client::MutexLock lock(mutex_);
  return known_.size();
}

void StartOrder::Add(Place place, Work begin) {
  {
    const client::MutexLock lock(mutex_);
    const auto [waiting, first] = waiting_.try_emplace(place);
    if (!first) {
      waiting->second.push_back(std::move(begin));
      return;
    }
  }
  begin();
}

void StartOrder::IsOver(Place place) {
  Work next;
  {
    const client::MutexLock lock(mutex_);
    const auto waiting = waiting_.find(place);
    if (waiting->second.empty()) {
      waiting_.erase(waiting);
      return;
    }
    next = std::move(waiting->second.front());
    waiting->second.pop_front();
  }
  next();
}

void PutNumber(std::uint64_t number, float* token) {
  token[0] = static_cast<float>(number % kPart);
  token[1] = static_cast<float>(number / kPart);
}

std::uint64_t GetNumber(const float* token) {
  for (int i = 0; i < 2; ++i) {
    if (!(token[i] >= 0 && token[i] < static_cast<float>(kPart))) return 0;
  }
  return static_cast<std::uint64_t>(token[0]) + static_cast<std::uint64_t>(token[1]) * kPart;
}

}  // namespace epd::jax
