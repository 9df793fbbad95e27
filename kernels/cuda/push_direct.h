// Scatter, straight: every route's row into its slot of the destination's receive buffer.
//
// The row is read once and written up to K times, so K copies cross the link. Right where the
// receive buffer itself can be written (ranks of one process, one rank) or K is about the number of
// ranks that a token reaches; otherwise push_landing.h moves less. Padding and tail are the
// receiver's to clear (ZeroPadding).
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/report.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A rank's receive buffer as its peers see it.
struct RecvTarget {
  std::uint8_t* rows = nullptr;  // [capacity, row_bytes], aligned to 16 bytes
  float* weights = nullptr;      // [capacity], or null
  std::int64_t capacity = 0;     // routes at or after it are dropped
};

struct PushDirectArgs {
  const PlanRoute* table = nullptr;     // [T, K]
  const std::uint8_t* rows = nullptr;   // [T, row_bytes]
  const float* weights = nullptr;       // [T, K], or null
  const RecvTarget* targets = nullptr;  // [R]
  std::int64_t num_tokens = 0;
  std::uint64_t row_bytes = 0;
  std::int32_t top_k = 0;
  std::int32_t num_ranks = 0;
  std::int32_t num_parts = 1;
  ReportWord* report = nullptr;
  Gate gate;
};

template <typename Mover>
struct PushDirect {
  using Args = PushDirectArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_tokens * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    if (part.row >= args.num_tokens || !args.gate.Open()) return;
    if (part.part == 0) PushWeights(args, part.row, thread);
    const std::uint8_t* row = args.rows + static_cast<std::uint64_t>(part.row) * args.row_bytes;
    for (std::int32_t k = 0; k < args.top_k; k += kFanOut) {
      Mover::Copy({row, Targets(args, part.row, k), args.row_bytes, part}, thread, shared);
    }
  }

 private:
  // The destination of a route, or null if it has none or is dropped.
  EPD_HOST_DEVICE static const RecvTarget* Find(const Args& args, const PlanRoute& route) {
    if (route.dst_rank < 0 || route.dst_rank >= args.num_ranks || route.slot < 0) return nullptr;
    const RecvTarget* target = args.targets + route.dst_rank;
    return route.slot < target->capacity ? target : nullptr;
  }

  EPD_HOST_DEVICE static RowTargets Targets(const Args& args, std::int64_t token, std::int32_t k) {
    RowTargets to;
    EPD_UNROLL
    for (int j = 0; j < kFanOut; ++j) {
      to.row[j] = nullptr;
      if (k + j >= args.top_k) continue;
      const PlanRoute route = args.table[token * args.top_k + k + j];
      const RecvTarget* target = Find(args, route);
      if (target == nullptr) continue;
      to.row[j] = target->rows + static_cast<std::uint64_t>(route.slot) * args.row_bytes;
    }
    return to;
  }

  EPD_HOST_DEVICE static void PushWeights(const Args& args, std::int64_t token,
                                          const ThreadPosition& thread) {
    for (std::int32_t k = thread.InWarp(); k < args.top_k; k += kWarpThreads) {
      const std::int64_t flat = token * args.top_k + k;
      const PlanRoute route = args.table[flat];
      // A table is trusted no further than its checksum goes.
      if (route.dst_rank < -1 || route.dst_rank >= args.num_ranks || route.slot < 0) {
        Note(args.report, KernelFault::kPlanRoute, flat);
      }
      const RecvTarget* target = Find(args, route);
      if (target == nullptr || target->weights == nullptr) continue;
      target->weights[route.slot] = args.weights != nullptr ? args.weights[flat] : 0.0f;
    }
  }
};

}  // namespace epd::cuda
