// What each rank has counted, to all who ask: prepare, in one launch whatever the number of ranks.
//
//   GatherCounts           by a worker, for several ranks
//   StageCounts, ReadCounts  by each rank, into its own stage and out of those of all
#pragma once

#include <cstdint>

#include "kernels/cuda/report.h"
#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"
#include "kernels/route_slice.h"
#include "kernels/routing_plan.h"

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

// A rank's counts into its stage, and for its worker's figures into host memory.
struct StageCounts {
  struct Args {
    const std::int32_t* counts = nullptr;  // [num_experts]
    std::int32_t* stage = nullptr;         // [num_experts]
    std::uint16_t* told = nullptr;  // [capacity] in an op slot: a slice of them, at most 65535 each
    const PlanIds* ids = nullptr;   // of the prepare, which say which slice
    std::int32_t capacity = 0;
    std::int32_t num_experts = 0;
    Gate gate;
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
    if (expert >= args.num_experts || !args.gate.Open()) return;
    const std::int32_t count = args.counts[expert];
    args.stage[expert] = count;
    const RouteSlice slice = RouteSliceOf(args.ids->plan_id, args.num_experts, args.capacity);
    if (expert < slice.begin || expert >= slice.end) return;
    args.told[expert - slice.begin] = static_cast<std::uint16_t>(count < 0xffff ? count : 0xffff);
  }
};

// All ranks' counts, out of their stages; zeros where the gate is closed.
struct ReadCounts {
  struct Args {
    const std::int32_t* const* stages = nullptr;  // [num_ranks] of [num_experts]
    std::int32_t* counts = nullptr;               // [num_ranks, num_experts]
    std::int32_t num_ranks = 0;
    std::int32_t num_experts = 0;
    Gate gate;
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t NumCounts(const Args& args) {
    return std::int64_t{args.num_ranks} * args.num_experts;
  }
  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(NumCounts(args), kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t i = thread.unit * thread.num_threads + thread.index;
    if (i >= NumCounts(args)) return;
    args.counts[i] = args.gate.Open() ? args.stages[i / args.num_experts][i % args.num_experts] : 0;
  }
};

}  // namespace epd::cuda
