// What a worker has put into its device's streams and not seen complete.
//
// A worker answers an operation's uses from a CPU, after an event behind its kernels and copies has been
// reached; a device that fails, or does not get there in time, ends the worker, since nothing that was
// put into a context can be taken out of it again. Its slots are then answered by epd.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/device/device_streams.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

using WorkId = uint64_t;

// Needs the device's context current on the calling thread; not thread-safe; time is an argument. The
// driver and the streams outlive it. Makes nothing after Create, so that nothing waits for the device.
class DeviceWork {
 public:
  struct Options {
    int max_open = 64;  // Over all streams.
    absl::Duration limit = absl::Seconds(30);
  };

  //   RESOURCE_EXHAUSTED  the driver makes no more events
  static absl::StatusOr<DeviceWork> Create(const DriverTable& driver, const DeviceStreams& streams,
                                           const Options& options);
  DeviceWork(DeviceWork&& other) noexcept;
  DeviceWork& operator=(DeviceWork&&) = delete;
  ~DeviceWork();

  // Lets `put` put an operation's work into the stream, and an event behind it. `put` allocates
  // nothing and waits for nothing; it returns the driver's code. `more`: time beyond the limit.
  //   RESOURCE_EXHAUSTED  max_open are open; try again after Poll
  //   INTERNAL            the driver refused: this worker must be replaced
  absl::Status Start(WorkId id, int stream, const std::function<Result(Stream)>& put,
                     absl::Time now, absl::Duration more = absl::ZeroDuration());

  // The work that is complete now, in each stream in the order of Start. Once an error was returned,
  // nothing is complete any more.
  //   INTERNAL           the device is lost (the driver's reason)
  //   DEADLINE_EXCEEDED  the oldest work of a stream is late
  absl::StatusOr<std::vector<WorkId>> Poll(absl::Time now);

  int num_open() const;
  absl::Time next_deadline() const;

 private:
  struct Open {
    WorkId id = 0;
    Event event = nullptr;
    absl::Time deadline;
  };
  DeviceWork(const DriverTable& driver, const DeviceStreams& streams, const Options& options)
      : driver_(driver), streams_(streams), options_(options) {}
  absl::Status Fail(absl::Status why);

  const DriverTable& driver_;
  const DeviceStreams& streams_;
  const Options options_;
  std::vector<Event> idle_;
  std::vector<std::deque<Open>> open_;  // Per stream.
  absl::Status failed_;
};

}  // namespace epd::cuda
