#include "client/cuda/registered_slots.h"

#include <map>

#include "client/c/mutex.h"

namespace epd::client {
namespace {

struct Registry {
  Mutex mutex;
  std::map<const void*, std::weak_ptr<RegisteredSlots>> slots EPD_GUARDED_BY(mutex);
};

// Leaked: a stream's thread may outlive main().
Registry& Known() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

Status Refused(const cuda::DriverTable& driver, const char* call, cuda::Result code) {
  return MakeStatus(Code::kFailedPrecondition, "the device cannot be used: %s",
                    cuda::Describe(driver, call, code).c_str());
}

Status RegisteredSlots::Create(const cuda::DriverTable& driver, std::shared_ptr<SlotPool> pool,
                               std::shared_ptr<RegisteredSlots>* out) {
  void* const segment = &pool->view().header();
  const uint64_t bytes = pool->view().bytes();
  Registry& known = Known();
  MutexLock lock(known.mutex);
  std::weak_ptr<RegisteredSlots>& entry = known.slots[segment];
  if ((*out = entry.lock()) != nullptr) return {};
  std::shared_ptr<RegisteredSlots> made(new RegisteredSlots(driver, std::move(pool)));
  cuda::Result code = driver.host_register(
      segment, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (code != cuda::kSuccess) return Refused(driver, "cuMemHostRegister", code);
  cuda::DevicePointer first = 0;
  code = driver.host_get_device_pointer(&first, segment, 0);
  if (code != cuda::kSuccess) {
    driver.host_unregister(segment);
    return Refused(driver, "cuMemHostGetDevicePointer", code);
  }
  made->first_ = first;
  entry = made;
  *out = std::move(made);
  return {};
}

RegisteredSlots::~RegisteredSlots() {
  if (first_ == 0) return;
  void* const segment = &pool_->view().header();
  Registry& known = Known();
  MutexLock lock(known.mutex);
  const auto found = known.slots.find(segment);
  if (found != known.slots.end() && found->second.expired()) known.slots.erase(found);
  driver_.host_unregister(segment);
}

}  // namespace epd::client
