#include "client/cuda/waited_use.h"

#include <chrono>
#include <thread>

#include "client/c/interrupt.h"
#include "client/cuda/beside_captures.h"
#include "client/cuda/registered_slots.h"

namespace epd::client {
namespace {

constexpr std::chrono::microseconds kLook{50};

template <typename Look>
Status Await(const cuda::DriverTable& driver, cuda::Stream stream, const Look& still) {
  const Interrupts interrupts;
  const BesideCaptures beside(driver);
  while (true) {
    const cuda::Result code = driver.stream_query(stream);
    const bool more = still();  // Behind the stream's last arm, if that was it.
    if (code != cuda::kSuccess && code != cuda::kNotReady)
      return Refused(driver, "cuStreamQuery", code);
    if (code == cuda::kSuccess && !more) return {};
    if (interrupts.any()) {
      return {Code::kCancelled, "interrupted (SIGINT) while a node's epd stops in order"};
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

Status AwaitStream(const cuda::DriverTable& driver, cuda::Stream stream) {
  return Await(driver, stream, [] { return false; });
}

Status AwaitUse(const cuda::DriverTable& driver, cuda::Stream stream, const StreamSite& site) {
  return Await(driver, stream, [&site] { return site.Ring(); });
}

bool IsBeingCaptured(const cuda::DriverTable& driver, cuda::Stream stream) {
  int status = cuda::kCaptureStatusNone;
  return driver.stream_is_capturing(stream, &status) == cuda::kSuccess &&
         status != cuda::kCaptureStatusNone;
}

}  // namespace epd::client
