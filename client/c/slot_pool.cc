#include "client/c/slot_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>

#include "client/c/interrupt.h"
#include "client/c/running_deadline.h"
#include "proto/failpoint/failpoint.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace epd::client {
namespace {

// The worker gives a thread's call the region of another thread's that has ended. It is another process, so ThreadSanitizer has to
// be told that what is done before a slot is armed comes before what is done after a wait.
#if defined(__SANITIZE_THREAD__)
void ComesBeforeTheWorker(SlotPool* pool) { __tsan_release(pool); }
void ComesAfterTheWorker(SlotPool* pool) { __tsan_acquire(pool); }
#else
void ComesBeforeTheWorker(SlotPool*) {}
void ComesAfterTheWorker(SlotPool*) {}
#endif

// For the worker, once a wait begins after its deadline.
constexpr std::chrono::seconds kLateWait{10};

static_assert(std::endian::native == std::endian::little, "SlotsView::DoneHalf");

// Sleeps while `done` is 0. The futex is shared: the one who wakes it is another process.
void SleepUntilDone(uint32_t* done, Clock::time_point deadline) {
  const auto since_boot = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  timespec until = {};
  until.tv_sec = seconds.count();
  until.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  syscall(SYS_futex, done, FUTEX_WAIT_BITSET, 0, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
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

SlotPool::SlotPool(const shm::SlotsView& view, int eventfd)
    : view_(view), eventfd_(eventfd), used_groups_(view.UsedGroups()) {
  for (int slot = static_cast<int>(view_.num_slots()) - 1; slot >= 0; --slot) free_.push_back(slot);
}

int SlotPool::Acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) TakeBackAll();
  if (free_.empty()) return -1;
  ReserveRetired(1);
  const int slot = free_.back();
  free_.pop_back();
  UseGroupOf(slot);
  return slot;
}

std::vector<int> SlotPool::AcquireOfOneGroup(int count) {
  MutexLock lock(mutex_);
  TakeBackAll();
  ReserveRetired(std::min(static_cast<size_t>(count), free_.size()));
  std::map<int, std::vector<int>> free_of_group;
  const auto group_of = [](int slot) { return slot / static_cast<int>(shm::kSlotsOfGroup); };
  for (const int slot : free_) free_of_group[group_of(slot)].push_back(slot);
  for (auto& [group, slots] : free_of_group) {
    if (slots.size() < static_cast<size_t>(count)) continue;
    std::sort(slots.begin(), slots.end());
    slots.resize(static_cast<size_t>(count));
    std::erase_if(free_, [&slots = slots](int slot) {
      return std::binary_search(slots.begin(), slots.end(), slot);
    });
    UseGroupOf(slots.front());
    return slots;
  }
  return {};
}

void SlotPool::ReserveRetired(size_t num_slots) {
  const size_t most = view_.num_slots() - free_.size() + num_slots;
  if (most > retired_.capacity()) retired_.reserve(std::max(most, 2 * retired_.capacity()));
}

void SlotPool::UseGroupOf(int slot) {
  const auto group = static_cast<uint32_t>(slot) / shm::kSlotsOfGroup;
  const uint64_t bit = uint64_t{1} << group;
  if ((used_groups_.load(std::memory_order_relaxed) & bit) != 0) return;
  used_groups_.fetch_or(bit, std::memory_order_seq_cst);
  view_.UseGroup(group);
}

void SlotPool::TakeBackAll() {
  std::erase_if(retired_, [&](const Retired& retired) {
    mutex_.AssertHeld();
    if (!IsFree(retired)) return false;
    AddFree(retired.slot);
    return true;
  });
}

void SlotPool::Release(int slot) {
  MutexLock lock(mutex_);
  AddFree(slot);
}

void SlotPool::AddFree(int slot) {
  free_.push_back(slot);
  const auto held = std::find_if(eager_.begin(), eager_.end(),
                                 [slot](const Eager& eager) { return eager.slot == slot; });
  if (held == eager_.end()) return;
  for (uint32_t i = 0; i < held->count; ++i) taken_.reset(held->first + i);
  *held = eager_.back();
  eager_.pop_back();
}

void SlotPool::LoseEagerBuffers(int slot) {
  MutexLock lock(mutex_);
  std::erase_if(eager_, [slot](const Eager& eager) { return eager.slot == slot; });
}

std::optional<uint32_t> SlotPool::TakeEagerBuffers(int slot, uint32_t count, uint32_t num_buffers) {
  MutexLock lock(mutex_);
  TakeBack();
  std::optional<uint32_t> first = FindEagerBuffers(count, num_buffers);
  if (!first && !retired_.empty()) {
    TakeBackAll();
    first = FindEagerBuffers(count, num_buffers);
  }
  if (!first) return std::nullopt;
  eager_.push_back({slot, *first, count});
  for (uint32_t i = 0; i < count; ++i) taken_.set(*first + i);
  return first;
}

std::optional<uint32_t> SlotPool::FindEagerBuffers(uint32_t count, uint32_t num_buffers) const {
  const uint32_t end = std::min(num_buffers, shm::kMaxEagerBuffers);
  uint32_t num_free = 0;
  for (uint32_t i = 0; i < end; ++i) {
    num_free = taken_.test(i) ? 0 : num_free + 1;
    if (num_free == count) return i + 1 - count;
  }
  return std::nullopt;
}

void SlotPool::Retire(int slot) {
  MutexLock lock(mutex_);
  retired_.push_back({slot, nullptr});
  TakeBack();
}

void SlotPool::RetireUntil(int slot, std::function<bool()> is_free) {
  MutexLock lock(mutex_);
  retired_.push_back({slot, std::move(is_free)});
  TakeBack();
}

// Most are free soon: taking the oldest back keeps few slots, and so few cache lines, in use.
void SlotPool::TakeBack() {
  const auto kept = std::find_if_not(retired_.begin(), retired_.end(),
                                     [&](const Retired& retired) { return IsFree(retired); });
  std::for_each(retired_.begin(), kept, [&](const Retired& retired) {
    mutex_.AssertHeld();
    AddFree(retired.slot);
  });
  retired_.erase(retired_.begin(), kept);
}

void SlotPool::WakeWorker() const {
  // Either the worker sees what was written before, or this its sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (view_.header().asleep.load(std::memory_order_relaxed) == 0) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) has woken it already.
  [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
}

void SlotPool::MarkArmed(int slot) const {
  const auto index = static_cast<uint32_t>(slot);
  view_.armed(index / shm::kSlotsOfGroup)
      .fetch_or(uint64_t{1} << (index % shm::kSlotsOfGroup), std::memory_order_release);
}

bool SlotPool::Ring(int slot) {
  if (!IsOpen(slot)) return false;
  MarkArmed(slot);
  WakeWorker();
  return true;
}

void SlotPool::Arm(int slot) {
  (*this)[slot].sleeping.store(0, std::memory_order_relaxed);
  EPD_FAILPOINT("client.slot.arm");
  ComesBeforeTheWorker(this);
  shm::Arm(WordOf(slot));
  EPD_FAILPOINT("client.slot.armed");
  MarkArmed(slot);
  WakeWorker();
  // Pairs with PoisonAll: either it sees this submission open or we see the flag.
  if (poisoned_.load(std::memory_order_seq_cst)) PoisonOpen(slot, Code::kUnavailable);
}

std::optional<uint32_t> SlotPool::WaitUntil(int slot, Clock::time_point until,
                                            Clock::time_point deadline,
                                            std::chrono::nanoseconds spin) {
  shm::Slot& s = (*this)[slot];
  const std::atomic<uint64_t>& word = WordOf(slot);
  const auto answered = [&] { return shm::Done(word.load(std::memory_order_acquire)) != 0; };
  if (spin.count() > 0) {
    const Clock::time_point spin_until = std::min(Clock::now() + spin, until);
    while (!answered() && Clock::now() < spin_until) {
      for (int i = 0; i < 64 && !answered(); ++i) Pause();
    }
  }
  const Interrupts interrupts;
  const Clock::time_point begin = Clock::now();
  // Whoever comes to wait late, as for a call that was left pending, may have been stopped together with the worker.
  RunningDeadline limit(begin < deadline ? deadline : begin + kLateWait, begin);
  while (!answered()) {
    const bool interrupted = interrupts.any();
    const Clock::time_point now = Clock::now();
    const bool late = limit.Passed(now);
    if (!interrupted && now >= until && !late) {
      s.sleeping.store(0, std::memory_order_relaxed);
      return std::nullopt;
    }
    if (interrupted || late) {
      LoseEagerBuffers(slot);
      PoisonOpen(slot, interrupted ? Code::kCancelled : Code::kDeadlineExceeded);
      if (answered()) break;
      // Neither open nor answered: no legal step leads there, so none will lead out of it.
      s.reply.message[0] = '\0';
      s.sleeping.store(0, std::memory_order_relaxed);
      return static_cast<uint32_t>(Code::kDataLoss);
    }
    s.sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!answered()) {
      SleepUntilDone(view_.DoneHalf(static_cast<uint32_t>(slot)),
                     std::min({until, limit.NextLook(), Clock::now() + kInterruptLook}));
    }
  }
  s.sleeping.store(0, std::memory_order_relaxed);
  ComesAfterTheWorker(this);
  return shm::AnswerCode(word.load(std::memory_order_acquire));
}

void SlotPool::SetStreamed(int slot, bool streamed) {
  const auto index = static_cast<uint32_t>(slot);
  std::atomic<uint64_t>& word = view_.streamed(index / shm::kSlotsOfGroup);
  const uint64_t bit = uint64_t{1} << (index % shm::kSlotsOfGroup);
  if (!streamed) {
    word.fetch_and(~bit, std::memory_order_release);
    return;
  }
  word.fetch_or(bit, std::memory_order_release);
  WakeWorker();
}

bool SlotPool::EndOpen(int slot, Code code) {
  std::atomic<uint64_t>& word = WordOf(slot);
  uint64_t seen = word.load(std::memory_order_acquire);
  while (shm::Ready(seen) != 0) {
    if (shm::Poison(word, seen, static_cast<uint32_t>(code))) return true;
    seen = word.load(std::memory_order_acquire);
  }
  return false;
}

void SlotPool::PoisonOpen(int slot, Code code) {
  std::atomic<uint64_t>& word = WordOf(slot);
  uint64_t seen = word.load(std::memory_order_acquire);
  while (shm::Ready(seen) != 0) {
    (*this)[slot].reply.message[0] = '\0';  // The waiter puts its own text.
    if (shm::Poison(word, seen, static_cast<uint32_t>(code))) break;
    seen = word.load(std::memory_order_acquire);
  }
  shm::WakeAll(view_.DoneHalf(static_cast<uint32_t>(slot)));
}

void SlotPool::PoisonAll() {
  poisoned_.store(true, std::memory_order_seq_cst);
  uint64_t groups = used_groups_.load(std::memory_order_seq_cst);
  for (; groups != 0; groups &= groups - 1) {
    const uint32_t first = static_cast<uint32_t>(std::countr_zero(groups)) * shm::kSlotsOfGroup;
    const uint32_t end = std::min(first + shm::kSlotsOfGroup, view_.num_slots());
    for (uint32_t slot = first; slot < end; ++slot)
      PoisonOpen(static_cast<int>(slot), Code::kUnavailable);
  }
}

Status SessionSlots::Map(std::vector<UniqueFd>& fds, size_t first, const Attached& attached,
                         std::shared_ptr<SessionSlots>* slots) {
  struct stat facts = {};
  if (fstat(fds[first].get(), &facts) != 0) facts.st_size = 0;
  const auto bytes = static_cast<uint64_t>(facts.st_size);
  Mapping mapping;
  if (Status s = Mapping::Map(fds[first].get(), bytes, /*writable=*/true, &mapping); !s.ok()) {
    return s;
  }
  shm::SlotsView view;
  if (const shm::SegmentFault fault =
          shm::SlotsView::Open(mapping.data(), bytes, shm::kReadVersions, &view);
      !fault.ok()) {
    return {fault.code, "the daemon sent what this library cannot use: " + fault.text};
  }
  const shm::SlotsHeader& header = view.header();
  if (header.session_id != attached.session_id || header.incarnation != attached.incarnation) {
    return MakeStatus(Code::kDataLoss, "the daemon sent another session's slots segment");
  }
  slots->reset(new SessionSlots(std::move(mapping), std::move(fds[first + 1]), view));
  return {};
}

}  // namespace epd::client
