// One step for several ranks in one launch: a launch each would cost more than its work does.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"

namespace epd::cuda {

// Steps whose Run does nothing in a unit behind their last one.
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
    const ThreadPosition own{thread.unit % args.units, thread.index, thread.num_threads};
    Step::template Run<kPhase>(args.each[thread.unit / args.units], own, shared);
  }
};

}  // namespace epd::cuda
