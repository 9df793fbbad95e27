#include "daemon/backend/cuda/device/device_streams.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace epd::cuda {

absl::StatusOr<DeviceStreams> DeviceStreams::Create(const DriverTable& driver, int count) {
  DeviceStreams streams(driver);
  for (int i = 0; i < count; ++i) {
    Stream stream = nullptr;
    const Result code = driver.stream_create(&stream, kStreamNonBlocking);
    if (code != kSuccess) {
      return absl::ResourceExhaustedError(Describe(driver, "cuStreamCreate", code));
    }
    streams.streams_.push_back(stream);
  }
  return streams;
}

DeviceStreams::DeviceStreams(DeviceStreams&& other) noexcept
    : driver_(other.driver_), streams_(std::exchange(other.streams_, {})) {}

DeviceStreams::~DeviceStreams() {
  for (const Stream stream : streams_) {
    if (driver_.stream_query(stream) == kSuccess) driver_.stream_destroy(stream);
  }
}

absl::Status DeviceStreams::CheckIdle() const {
  if (held()) return absl::FailedPreconditionError("another thread puts work into a stream");
  for (int i = 0; i < size(); ++i) {
    const Result code = driver_.stream_query(at(i));
    if (code == kSuccess) continue;
    if (code == kNotReady) {
      return absl::FailedPreconditionError(absl::StrCat("stream ", i, " has work left"));
    }
    return absl::InternalError(
        absl::StrCat(Describe(driver_, "cuStreamQuery", code), ": the device is lost"));
  }
  return absl::OkStatus();
}

}  // namespace epd::cuda
