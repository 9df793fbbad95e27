#include "client/cuda/registered_slots.h"

#include <chrono>

#include "client/c/made_once.h"
#include "client/c/mutex.h"

namespace epd::client {
namespace {

constexpr std::chrono::seconds kDeadline{60};

using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace

// Drivers refuse what is registered: whoever comes behind the last holder waits for its end.
class RegisteredSlots::Release {
 public:
  void End() {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  }
  bool Await(TimePoint deadline) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, deadline, [this] {
      mutex_.AssertHeld();
      return over_;
    });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool over_ EPD_GUARDED_BY(mutex_) = false;
};

// Of a segment; stays behind for the next one in its place.
struct RegisteredSlots::Known {
  std::weak_ptr<RegisteredSlots> slots;
  std::shared_ptr<Release> release;

  // Leaked: a stream's thread may outlive main().
  static MadeOnce<const void*, Known>& All() {
    static auto* const all = new MadeOnce<const void*, Known>;
    return *all;
  }
};

Status Refused(const cuda::DriverTable& driver, const char* call, cuda::Result code) {
  return MakeStatus(Code::kFailedPrecondition, "the device cannot be used: %s",
                    cuda::Describe(driver, call, code).c_str());
}

RegisteredSlots::RegisteredSlots(const cuda::DriverTable& driver, std::shared_ptr<SlotPool> pool)
    : driver_(driver), pool_(std::move(pool)), release_(std::make_shared<Release>()) {}

Status RegisteredSlots::Create(const cuda::DriverTable& driver, std::shared_ptr<SlotPool> pool,
                               std::shared_ptr<RegisteredSlots>* out) {
  const TimePoint deadline = std::chrono::steady_clock::now() + kDeadline;
  Known unused;
  return Known::All().Get(
      &pool->view().header(), deadline,
      [out](const Known& there) { return (*out = there.slots.lock()) != nullptr; },
      [&](Known* known) -> Status {
        if (known->release != nullptr && !known->release->Await(deadline)) {
          return {Code::kDeadlineExceeded, "another thread has not unregistered the slots in time"};
        }
        std::shared_ptr<RegisteredSlots> made(new RegisteredSlots(driver, std::move(pool)));
        if (Status s = made->Register(); !s.ok()) return s;
        *known = {made, made->release_};
        *out = std::move(made);
        return {};
      },
      &unused);
}

Status RegisteredSlots::Register() {
  void* const segment = &pool_->view().header();
  cuda::Result code = driver_.host_register(
      segment, pool_->view().bytes(), cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (code != cuda::kSuccess) return Refused(driver_, "cuMemHostRegister", code);
  cuda::DevicePointer first = 0;
  code = driver_.host_get_device_pointer(&first, segment, 0);
  if (code != cuda::kSuccess) {
    driver_.host_unregister(segment);
    return Refused(driver_, "cuMemHostGetDevicePointer", code);
  }
  first_ = first;
  return {};
}

RegisteredSlots::~RegisteredSlots() {
  if (first_ != 0) driver_.host_unregister(&pool_->view().header());
  release_->End();
}

}  // namespace epd::client
