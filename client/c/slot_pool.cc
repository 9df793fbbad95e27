#include "client/c/slot_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstdlib>

#include "proto/epd/v1/slot_word.h"

namespace epd::client {
namespace {

// The `done` half of a slot's word; 0 while a use is open.
uint32_t* DoneHalf(std::atomic<uint64_t>& word) {
  static_assert(std::endian::native == std::endian::little);
  return reinterpret_cast<uint32_t*>(&word) + 1;
}

// Sleeps while `done` is 0. The futex is shared: the one who wakes it is another process.
void SleepUntilDone(std::atomic<uint64_t>& word, Clock::time_point deadline) {
  const auto since_boot = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  timespec until = {};
  until.tv_sec = seconds.count();
  until.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  syscall(SYS_futex, DoneHalf(word), FUTEX_WAIT_BITSET, 0, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::chrono::nanoseconds SpinTime(uint32_t num_waiters) {
  constexpr int64_t kSpinUs = 50;
  if (const char* text = std::getenv("EPD_SPIN_US")) {
    char* end = nullptr;
    const long us = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && us >= 0 && us <= 1'000'000) {
      return std::chrono::microseconds(us);
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  const bool spare = static_cast<uint32_t>(CPU_COUNT(&set)) > num_waiters;
  return std::chrono::microseconds(spare ? kSpinUs : 0);
}

SlotPool::SlotPool(shm::SlotsSegment* segment, int eventfd) : segment_(segment), eventfd_(eventfd) {
  for (int slot = shm::kSlotsPerSession - 1; slot >= 0; --slot) free_.push_back(slot);
}

int SlotPool::Acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    std::erase_if(retired_, [&](int slot) {
      mutex_.AssertHeld();
      if (shm::Ready(segment_->slots[slot].word.load(std::memory_order_acquire)) != 0) return false;
      free_.push_back(slot);
      return true;
    });
  }
  if (free_.empty()) return -1;
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

void SlotPool::Release(int slot) {
  MutexLock lock(mutex_);
  free_.push_back(slot);
}

void SlotPool::Retire(int slot) {
  MutexLock lock(mutex_);
  retired_.push_back(slot);
  // Most are answered soon: taking the oldest back keeps few slots, and so few cache lines, in use.
  while (!retired_.empty() &&
         shm::Ready(segment_->slots[retired_.front()].word.load(std::memory_order_acquire)) == 0) {
    free_.push_back(retired_.front());
    retired_.pop_front();
  }
}

void SlotPool::WakeWorker() const {
  // Either the worker sees what was written before, or this its sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_->header.asleep.load(std::memory_order_relaxed) == 0) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) has woken it already.
  [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
}

void SlotPool::Arm(int slot) {
  shm::SlotsHeader& header = segment_->header;
  shm::Slot& s = segment_->slots[slot];
  s.sleeping.store(0, std::memory_order_relaxed);
  shm::Arm(s.word);
  header.armed[slot / 64].fetch_or(uint64_t{1} << (slot % 64), std::memory_order_release);
  WakeWorker();
  // Pairs with PoisonAll: either it sees this use open or we see the flag.
  if (poisoned_.load(std::memory_order_seq_cst)) PoisonOpen(slot, Code::kUnavailable);
}

uint32_t SlotPool::Wait(int slot, Clock::time_point deadline, std::chrono::nanoseconds spin) {
  shm::Slot& s = segment_->slots[slot];
  const auto answered = [&] { return shm::Done(s.word.load(std::memory_order_acquire)) != 0; };
  if (spin.count() > 0) {
    const Clock::time_point spin_until = Clock::now() + spin;
    while (!answered() && Clock::now() < spin_until) {
      for (int i = 0; i < 64 && !answered(); ++i) Pause();
    }
  }
  while (!answered()) {
    if (Clock::now() >= deadline) {
      if (slot < kEagerBits)
        lost_eager_buffers_.fetch_or(uint32_t{1} << slot, std::memory_order_relaxed);
      PoisonOpen(slot, Code::kDeadlineExceeded);
      if (answered()) break;
      // Neither open nor answered: no legal step leads there, so none will lead out of it.
      s.reply.message[0] = '\0';
      s.sleeping.store(0, std::memory_order_relaxed);
      return static_cast<uint32_t>(Code::kDataLoss);
    }
    s.sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!answered()) SleepUntilDone(s.word, deadline);
  }
  s.sleeping.store(0, std::memory_order_relaxed);
  return shm::AnswerCode(s.word.load(std::memory_order_acquire));
}

void SlotPool::SetStreamed(int slot, bool streamed) {
  std::atomic<uint64_t>& word = segment_->header.streamed[slot / 64];
  const uint64_t bit = uint64_t{1} << (slot % 64);
  if (!streamed) {
    word.fetch_and(~bit, std::memory_order_release);
    return;
  }
  word.fetch_or(bit, std::memory_order_release);
  WakeWorker();
}

bool SlotPool::EndOpen(int slot, Code code) {
  std::atomic<uint64_t>& word = segment_->slots[slot].word;
  uint64_t seen = word.load(std::memory_order_acquire);
  while (shm::Ready(seen) != 0) {
    if (shm::Poison(word, seen, static_cast<uint32_t>(code))) return true;
    seen = word.load(std::memory_order_acquire);
  }
  return false;
}

void SlotPool::PoisonOpen(int slot, Code code) {
  shm::Slot& s = segment_->slots[slot];
  uint64_t seen = s.word.load(std::memory_order_acquire);
  while (shm::Ready(seen) != 0) {
    s.reply.message[0] = '\0';  // The waiter puts its own text.
    if (shm::Poison(s.word, seen, static_cast<uint32_t>(code))) break;
    seen = s.word.load(std::memory_order_acquire);
  }
  syscall(SYS_futex, DoneHalf(s.word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SlotPool::PoisonAll() {
  poisoned_.store(true, std::memory_order_seq_cst);
  for (uint32_t slot = 0; slot < shm::kSlotsPerSession; ++slot) {
    PoisonOpen(static_cast<int>(slot), Code::kUnavailable);
  }
}

}  // namespace epd::client
