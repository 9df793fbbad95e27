#include "client/cuda/upload.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "client/cuda/host_pages.h"
#include "client/cuda/registered_slots.h"

namespace epd::client {
namespace {

constexpr std::chrono::microseconds kLook{100};
constexpr std::chrono::seconds kLimit{30};

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
    return {Code::kDeadlineExceeded, "the device has not taken a group's tables within 30 s"};
  }
  driver.stream_destroy(stream);
  return code == cuda::kSuccess ? Status() : Refused(driver, "cuMemcpyAsync", code);
}

}  // namespace

Status Upload(const cuda::DriverTable& driver, const void* from, size_t bytes,
              cuda::DevicePointer to) {
  std::unique_ptr<HostPages> pages;
  if (Status s = HostPages::Make(driver, bytes, &pages); !s.ok()) return s;
  std::memcpy(pages->data(), from, bytes);
  Status sent = Send(driver, pages->on_device(), bytes, to);
  // A copy that is still on its way reads them.
  if (sent.code == Code::kDeadlineExceeded) (void)pages.release();
  return sent;
}

}  // namespace epd::client
