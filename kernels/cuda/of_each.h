// One step for several ranks in one launch: a launch each would cost more than its work does.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"

namespace epd::cuda {

// The ranks' units take turns, so that what lies in several devices' memory is read from all of them at a time, and not
// from the same one by all of its readers.
template <typename Step>
struct OfEach {
  struct Args {
    const typename Step::Args* each = nullptr;  // [num], on the device
    std::int32_t num = 0;
    std::int64_t units = 0;  // of the one that has most
  };
  using Shared = typename Step::Shared;
  static constexpr std::int32_t kThreads = Step::kThreads;
  static constexpr int kPhases = Step::kPhases;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.num * args.units; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    // A copy, since the step's stores could change what it points into, as far as a compiler knows.
    const typename Step::Args own = args.each[thread.unit % args.num];
    const std::int64_t unit = thread.unit / args.num;
    if (unit >= Step::Units(own)) return;
    Step::template Run<kPhase>(own, {unit, thread.index, thread.num_threads}, shared);
  }
};

}  // namespace epd::cuda
