// The session's op slots: who holds which, and the client's side of their cycle
// (proto/epd/v1/slot_word.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/c/attach_messages.h"
#include "client/c/mapping.h"
#include "client/c/mutex.h"
#include "client/c/status.h"
#include "client/c/unique_fd.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/slots_view.h"

namespace epd::client {

using Clock = std::chrono::steady_clock;

// How long a wait spins before it sleeps: EPD_SPIN_US, else some time where this process may use
// more CPUs than `num_waiters`, else none, because a spinning rank then keeps the rank that it
// waits for from running.
std::chrono::nanoseconds SpinTime(uint32_t num_waiters);

// Between two looks at a word.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Safe from any thread; a slot is used by one thread at a time. To give a slot back takes no memory.
class SlotPool {
 public:
  // Borrows the segment; `eventfd` wakes the worker.
  SlotPool(const shm::SlotsView& view, int eventfd);

  // A slot whose last submission was answered. -1: all are outstanding.
  int Acquire();
  // Several of one group of 64 slots, which the worker looks at as a whole. Empty: no group has as many left.
  std::vector<int> AcquireOfOneGroup(int count);
  // Gives back a slot whose last submission was answered.
  void Release(int slot);
  // Gives back a slot whose last submission is armed: it is free once that is answered.
  void Retire(int slot);

  shm::Slot& operator[](int slot) { return view_.slot(static_cast<uint32_t>(slot)); }
  const shm::SlotsView& view() const { return view_; }

  // `count` eager buffers in a row for the rows of a call whose slot this is, of the first `num_buffers`: the lowest that no
  // other slot has. The slot has them until it is free, and has none yet. Nothing: there are not as many.
  std::optional<uint32_t> TakeEagerBuffers(int slot, uint32_t count, uint32_t num_buffers);

  // Gives back a slot whose last submission was answered, and whose eager buffers others may still read until `is_free`.
  void RetireUntil(int slot, std::function<bool()> is_free);

  // Its eager buffers are nobody's from here on, for good: others may still read them.
  void LoseEagerBuffers(int slot) EPD_EXCLUDES(mutex_);

  // Held by whoever publishes a call for itself (direct_call.h): an arena's records are written in turn.
  Mutex& publish_mutex() EPD_RETURN_CAPABILITY(publish_mutex_) { return publish_mutex_; }
  // Peers look at an area's newest `window` publications alone, so whoever may still look for one must find it there: a
  // new one waits until it pushes none out. `count` is over once all peers have read, or none will.
  bool HasRoomToPublish(const void* area, uint32_t count, uint32_t window) const
      EPD_REQUIRES(publish_mutex_) {
    const auto open = publications_.find(area);
    return open == publications_.end() ||
           std::all_of(open->second.begin(), open->second.end(),
                       [&](uint32_t older) { return count - older < window; });
  }
  // Before it is: it may find no memory.
  void NotePublished(const void* area, uint32_t count) EPD_REQUIRES(publish_mutex_) {
    publications_[area].push_back(count);
  }
  void EndPublication(const void* area, uint32_t count) EPD_EXCLUDES(publish_mutex_) {
    MutexLock lock(publish_mutex_);
    ForgetPublication(area, count);
  }
  void ForgetPublication(const void* area, uint32_t count) EPD_REQUIRES(publish_mutex_) {
    const auto open = publications_.find(area);
    if (open == publications_.end()) return;
    std::erase(open->second, count);
    if (open->second.empty()) publications_.erase(open);
  }

  // Whether a submission of the slot is armed or claimed.
  bool IsOpen(int slot) const {
    return shm::Ready(WordOf(slot).load(std::memory_order_acquire)) != 0;
  }
  // Whether a GPU's stream arms the slot: the worker looks at it without being rung for.
  void SetStreamed(int slot, bool streamed);
  // Has the worker look at the slot if it is armed, as one of a stream that SetStreamed does not name.
  // Whether a submission of it is open.
  bool Ring(int slot);
  // Ends an open submission of the slot with `code`: nobody else will. False: none was open.
  bool EndOpen(int slot, Code code);
  bool ended() const { return view_.header().ended.load(std::memory_order_acquire) != 0; }

  // Arms a slot whose request is written, and wakes the worker if it sleeps.
  void Arm(int slot);

  // Waits for the answer of an armed slot and returns its code. When `deadline` passes the wait
  // ends the submission itself, with DEADLINE_EXCEEDED, or with DATA_LOSS where the word is then neither
  // open nor answered: somebody wrote over the segment. Its eager buffers are nobody's then, for good: peers may have heard
  // more, and read them.
  uint32_t Wait(int slot, Clock::time_point deadline, std::chrono::nanoseconds spin) {
    return *WaitUntil(slot, Clock::time_point::max(), deadline, spin);
  }
  // As Wait, but no longer than `until`: then nothing, and to be waited for again.
  std::optional<uint32_t> WaitUntil(int slot, Clock::time_point until, Clock::time_point deadline,
                                    std::chrono::nanoseconds spin);

  // Ends every open submission with UNAVAILABLE, now and, in Arm, from now on: the daemon is gone.
  void PoisonAll();

 private:
  void PoisonOpen(int slot, Code code);
  // If it sleeps.
  void WakeWorker() const;

  std::atomic<uint64_t>& WordOf(int slot) const { return view_.word(static_cast<uint32_t>(slot)); }

  const shm::SlotsView view_;
  const int eventfd_;
  // Bit per group of 64 slots that has been given out. Nobody looks at others, which have no pages yet.
  std::atomic<uint64_t> used_groups_;
  std::atomic<bool> poisoned_ = false;
  Mutex mutex_;
  std::vector<int> free_ EPD_GUARDED_BY(mutex_);
  struct Retired {
    int slot;
    std::function<bool()> is_free;  // Null: once its submission is answered.
  };
  bool IsFree(const Retired& retired) const {
    return retired.is_free != nullptr ? retired.is_free() : !IsOpen(retired.slot);
  }
  // Nobody uses the slot any more.
  void AddFree(int slot) EPD_REQUIRES(mutex_);
  // The first of `count` in a row that nobody has.
  std::optional<uint32_t> FindEagerBuffers(uint32_t count, uint32_t num_buffers) const
      EPD_REQUIRES(mutex_);
  void TakeBack() EPD_REQUIRES(mutex_);
  void TakeBackAll() EPD_REQUIRES(mutex_);
  // So that `num_slots` free ones may be given out, and come back, all of them retired.
  void ReserveRetired(size_t num_slots) EPD_REQUIRES(mutex_);
  // Before a slot that was free is given out.
  void UseGroupOf(int slot) EPD_REQUIRES(mutex_);
  // Where the worker looks for what is armed.
  void MarkArmed(int slot) const;
  std::vector<Retired> retired_ EPD_GUARDED_BY(mutex_);
  struct Eager {
    int slot;
    uint32_t first;
    uint32_t count;
  };
  std::vector<Eager> eager_ EPD_GUARDED_BY(mutex_);  // Of the slots that have any.
  // In the arenas of all ranks of this session, which share them.
  std::bitset<shm::kMaxEagerBuffers> taken_ EPD_GUARDED_BY(mutex_);
  Mutex publish_mutex_;  // Taken under mutex_, too; a leaf.
  // Of each area, those that are not over.
  std::map<const void*, std::vector<uint32_t>> publications_ EPD_GUARDED_BY(publish_mutex_);
};

// A session's op slots for one worker of the node.
class SessionSlots {
 public:
  // Maps what the daemon sent: fds[first] the segment, fds[first + 1] the eventfd, which is taken.
  //   DATA_LOSS           no slots of this session
  //   UNIMPLEMENTED       slots of a version that this library does not read
  //   RESOURCE_EXHAUSTED  no address space
  static Status Map(std::vector<UniqueFd>& fds, size_t first, const Attached& attached,
                    std::shared_ptr<SessionSlots>* slots);

  SlotPool& pool() { return pool_; }
  // For a forked child, which has nothing to wake.
  void CloseEvent() { event_ = UniqueFd(); }

 private:
  SessionSlots(Mapping mapping, UniqueFd event, const shm::SlotsView& view)
      : mapping_(std::move(mapping)), event_(std::move(event)), pool_(view, event_.get()) {}

  const Mapping mapping_;
  UniqueFd event_;
  SlotPool pool_;
};

}  // namespace epd::client
