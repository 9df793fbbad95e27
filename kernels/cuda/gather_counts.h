// What each rank has counted, to all who ask: prepare, in one launch whatever the number of ranks.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"

namespace epd::cuda {

// One rank's row of counts into every table of all ranks' rows. It is read once, since it may lie in another device's memory.
struct GatherCounts {
  struct Args {
    const std::int32_t* from = nullptr;   // [num_experts]
    std::int32_t* const* outs = nullptr;  // [num_outs] tables [R, num_experts]
    std::int32_t num_outs = 0;
    std::int32_t num_experts = 0;
    std::int64_t at = 0;  // Where the row stands in a table.
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_experts, kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t expert = thread.unit * thread.num_threads + thread.index;
    if (expert >= args.num_experts) return;
    const std::int32_t count = args.from[expert];
    for (std::int32_t i = 0; i < args.num_outs; ++i) args.outs[i][args.at + expert] = count;
  }
};

}  // namespace epd::cuda
