// A session's slots as a GPU sees them: host memory, registered with the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/c/slot_pool.h"
#include "client/c/status.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// A call of the driver that has failed: FAILED_PRECONDITION.
Status Refused(const cuda::DriverTable& driver, const char* call, cuda::Result code);

// Registered once for each session, whichever groups use it; unregistered with the last of them.
// Create and the last release need the device's context current and nothing pending in its streams. The driver pins and
// unpins the whole segment meanwhile: sessions wait for each other nowhere.
class RegisteredSlots {
 public:
  // `pool` keeps its segment mapped while anybody holds it, also when the session has ended.
  //   FAILED_PRECONDITION  the driver refuses the segment
  //   DEADLINE_EXCEEDED    another thread has not registered it in time, or not unregistered it, which was its last holder
  static Status Create(const cuda::DriverTable& driver, std::shared_ptr<SlotPool> pool,
                       std::shared_ptr<RegisteredSlots>* slots);
  ~RegisteredSlots();
  RegisteredSlots(const RegisteredSlots&) = delete;
  RegisteredSlots& operator=(const RegisteredSlots&) = delete;

  // As the device addresses them: a slot, and its word.
  cuda::DevicePointer AddressOf(int slot) const {
    return first_ + pool_->view().OffsetOfSlot(static_cast<uint32_t>(slot));
  }
  cuda::DevicePointer AddressOfWord(int slot) const {
    return first_ + pool_->view().OffsetOfWord(static_cast<uint32_t>(slot));
  }
  // Of the word that epd sets when the session has ended.
  cuda::DevicePointer AddressOfEnded() const { return first_ + offsetof(shm::SlotsHeader, ended); }
  SlotPool& pool() { return *pool_; }

 private:
  class Release;
  struct Known;
  RegisteredSlots(const cuda::DriverTable& driver, std::shared_ptr<SlotPool> pool);
  Status Register();

  const cuda::DriverTable& driver_;
  const std::shared_ptr<SlotPool> pool_;
  const std::shared_ptr<Release> release_;
  cuda::DevicePointer first_ = 0;
};

}  // namespace epd::client
