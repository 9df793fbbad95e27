#include "client/cuda/upload.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "client/cuda/registered_slots.h"

namespace epd::client {
namespace {

constexpr std::chrono::microseconds kLook{100};
constexpr std::chrono::seconds kLimit{10};

// In a stream of its own, in which nothing waits.
Status Send(const cuda::DriverTable& driver, cuda::DevicePointer from, size_t bytes,
            cuda::DevicePointer to) {
  cuda::Stream stream = nullptr;
  cuda::Result code = driver.stream_create(&stream, cuda::kStreamNonBlocking);
  if (code != cuda::kSuccess) return Refused(driver, "cuStreamCreate", code);
  code = driver.copy_async(to, from, bytes, stream);
  if (code == cuda::kSuccess) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point deadline = Clock::now() + kLimit;
    while ((code = driver.stream_query(stream)) == cuda::kNotReady && Clock::now() < deadline) {
      std::this_thread::sleep_for(kLook);
    }
  }
  if (code == cuda::kNotReady) {
    return {Code::kDeadlineExceeded, "the device has not taken a group's tables within 10 s"};
  }
  driver.stream_destroy(stream);
  return code == cuda::kSuccess ? Status() : Refused(driver, "cuMemcpyAsync", code);
}

}  // namespace

Status Upload(const cuda::DriverTable& driver, const void* from, size_t bytes,
              cuda::DevicePointer to) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    return MakeStatus(Code::kResourceExhausted, "no pages for %zu bytes of a group's tables",
                      bytes);
  }
  std::memcpy(pages, from, bytes);
  cuda::Result code = driver.host_register(
      pages, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (code != cuda::kSuccess) {
    munmap(pages, bytes);
    return Refused(driver, "cuMemHostRegister", code);
  }
  cuda::DevicePointer on_device = 0;
  code = driver.host_get_device_pointer(&on_device, pages, 0);
  const Status sent = code == cuda::kSuccess ? Send(driver, on_device, bytes, to)
                                             : Refused(driver, "cuMemHostGetDevicePointer", code);
  // A copy that is still on its way reads them.
  if (sent.code == Code::kDeadlineExceeded) return sent;
  driver.host_unregister(pages);
  munmap(pages, bytes);
  return sent;
}

}  // namespace epd::client
