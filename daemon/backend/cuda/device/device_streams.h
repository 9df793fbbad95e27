// The streams of one device's worker, and whether any work is left in them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// Streams are made at the start, before there is work, and go at the end, when there is none. Needs the
// device's context current on the calling thread; not thread-safe.
class DeviceStreams {
 public:
  //   RESOURCE_EXHAUSTED  the driver makes no more; what was made is given back
  static absl::StatusOr<DeviceStreams> Create(const DriverTable& driver, int count);
  // Streams with work left are left to the end of the process: destroying them could block for ever.
  ~DeviceStreams();
  DeviceStreams(DeviceStreams&& other) noexcept;
  DeviceStreams& operator=(DeviceStreams&&) = delete;

  Stream at(int index) const { return streams_[static_cast<size_t>(index)]; }
  int size() const { return static_cast<int>(streams_.size()); }

  // Whether memory may be made, mapped or taken away now: such calls may wait for the device, and what
  // a stream waits for may be somebody else.
  //   FAILED_PRECONDITION  work is left; try again once it is done
  //   INTERNAL             the device is lost (an illegal access, say): this worker must be replaced
  absl::Status CheckIdle() const;

  // Another thread puts work into a stream from now on, until it is released: no moment is idle. Whoever
  // holds has a deadline of its own.
  void Hold() { ++num_held_; }
  void Release() { --num_held_; }
  bool held() const { return num_held_ > 0; }

 private:
  explicit DeviceStreams(const DriverTable& driver) : driver_(driver) {}

  const DriverTable& driver_;
  std::vector<Stream> streams_;
  int num_held_ = 0;
};

}  // namespace epd::cuda
