// Calls of a driver beside captures of streams, which are somebody else's.
#pragma once

#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// While it lives, no call of this thread ends a capture because the capture would not see it: in the mode that threads begin
// with an allocation, or a look at a stream, ends each one that was begun in that mode, on whatever thread
// (cuThreadExchangeStreamCaptureMode). What waits for all of a context ends them in any mode, so nothing here does.
class BesideCaptures {
 public:
  explicit BesideCaptures(const cuda::DriverTable& driver) : driver_(driver) { Exchange(); }
  ~BesideCaptures() { Exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void Exchange() { driver_.thread_exchange_capture_mode(&mode_); }

  const cuda::DriverTable& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;
};

}  // namespace epd::client
