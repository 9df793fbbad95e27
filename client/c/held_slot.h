// One operation's slot of a session's pool.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "client/c/slot_pool.h"

namespace epd::client {

// A slot for one operation; it goes back to the pool in the state that its last submission left it in.
class HeldSlot {
 public:
  explicit HeldSlot(SlotPool& pool) : pool_(pool), index_(pool.Acquire()) {}
  ~HeldSlot() {
    if (index_ < 0) return;
    if (is_free_ != nullptr) {
      pool_.RetireUntil(index_, std::move(is_free_));
    } else if (open_) {
      pool_.Retire(index_);
    } else {
      pool_.Release(index_);
    }
  }
  HeldSlot(const HeldSlot&) = delete;
  HeldSlot& operator=(const HeldSlot&) = delete;

  bool valid() const { return index_ >= 0; }
  std::optional<uint32_t> TakeEagerBuffers(uint32_t count, uint32_t num_buffers) {
    return pool_.TakeEagerBuffers(index_, count, num_buffers);
  }
  const shm::Area& eager_buffers() const { return pool_.view().eager_buffers(); }
  shm::Slot& operator*() { return pool_[index_]; }

  uint32_t ArmAndWait(Clock::time_point deadline, std::chrono::nanoseconds spin) {
    Arm();
    return pool_.Wait(index_, deadline, spin);
  }
  // To be waited for.
  void Arm() { pool_.Arm(index_); }
  std::optional<uint32_t> WaitUntil(Clock::time_point until, Clock::time_point deadline,
                                    std::chrono::nanoseconds spin) {
    return pool_.WaitUntil(index_, until, deadline, spin);
  }
  void ArmAndLeave() {
    open_ = true;
    pool_.Arm(index_);
  }
  // Its call ends on the way: its last submission may be open, and others may read its eager buffers.
  void Abandon() {
    pool_.LoseEagerBuffers(index_);
    open_ = true;
  }
  // Its last submission is answered, but its eager buffers are read until `is_free`.
  void LeaveUntil(std::function<bool()> is_free) { is_free_ = std::move(is_free); }
  SlotPool& pool() { return pool_; }

 private:
  SlotPool& pool_;
  const int index_;
  bool open_ = false;
  std::function<bool()> is_free_;
};

}  // namespace epd::client
