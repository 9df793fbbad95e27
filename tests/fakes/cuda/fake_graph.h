// What a stream capture does, over the table of a driver: calls are remembered in place of made, and
// made again at each replay, with the bytes that they had. What a capture does not allow ends it.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _INVALIDATED.
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureInvalidated = 901;

// One at a time per process.
//
// Captures are of the default mode, the strictest. By CUDA's documentation of cuThreadExchangeStreamCaptureMode a call that a
// capture would not see, such as an allocation or a look at a stream, is then an error on every thread that is not in the
// relaxed mode, and ends the capture. What waits for a context does so in any mode: so says cuCtxRecordEvent's, and so do drivers at
// cudaDeviceSynchronize (ROCm/rocm-systems, pull request 4508, has a table of what they did); the driver's table has no such call.
class FakeGraph {
 public:
  explicit FakeGraph(const DriverTable& driver);
  ~FakeGraph();

  // To be used in place of the driver's own.
  const DriverTable& table() const { return table_; }

  using Calls = std::vector<std::function<Result(Stream)>>;
  // What this thread puts into streams from now on goes into the graph that End returns, which is empty if the capture
  // has been ended meanwhile.
  void Begin();
  // Whether this thread's capture has not been ended by somebody.
  static bool IsWhole();
  Calls End();
  // What waits for a context does so to all captures. Whether there were any.
  static bool EndAll();
  // The first call's error, or kSuccess.
  static Result Replay(const Calls& calls, Stream stream);

  const DriverTable& driver() const { return driver_; }

 private:
  const DriverTable& driver_;
  DriverTable table_;
};

}  // namespace epd::cuda
