#include "client/cuda/host_pages.h"

#include <sys/mman.h>

#include "client/cuda/registered_slots.h"

namespace epd::client {

Status HostPages::Make(const cuda::DriverTable& driver, size_t bytes,
                       std::unique_ptr<HostPages>* out) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    return MakeStatus(Code::kResourceExhausted, "no pages for %zu bytes that a device copies",
                      bytes);
  }
  std::unique_ptr<HostPages> made(new HostPages(driver, pages, bytes));
  cuda::Result code = driver.host_register(
      pages, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (code != cuda::kSuccess) return Refused(driver, "cuMemHostRegister", code);
  made->registered_ = true;
  code = driver.host_get_device_pointer(&made->on_device_, pages, 0);
  if (code != cuda::kSuccess) return Refused(driver, "cuMemHostGetDevicePointer", code);
  *out = std::move(made);
  return {};
}

HostPages::~HostPages() {
  if (registered_) driver_.host_unregister(pages_);
  munmap(pages_, bytes_);
}

}  // namespace epd::client
