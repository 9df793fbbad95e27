// Scatter, straight: every route's row into its slot of the destination's receive buffer.
//
// The row is read once and written K times, so K copies cross the link. Right where the
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
struct PushShared {
  TokenRows<std::uint8_t> to;
  typename Mover::Shared mover;
};
template <typename Mover>
EPD_HOST_DEVICE inline void BeginShared(PushShared<Mover>& shared, const ThreadPosition& thread) {
  BeginShared(shared.mover, thread);
}
template <typename Mover>
EPD_HOST_DEVICE inline void EndShared(PushShared<Mover>& shared, const ThreadPosition& thread) {
  EndShared(shared.mover, thread);
}

// A block takes a token, or a part of its row.
template <typename Mover>
struct PushDirect {
  using Args = PushDirectArgs;
  using Shared = PushShared<Mover>;
  static constexpr std::int32_t kThreads = Mover::kSpreadThreads;
  static constexpr int kPhases = 3;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return args.num_tokens * args.num_parts;
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.unit, args.num_parts);
    if constexpr (kPhase == 0) {
      FindTargets(args, part, thread, shared.to);
    } else if constexpr (kPhase == 1) {
      LineUp(args.top_k, thread, shared.to);
    } else {
      const std::uint8_t* row = args.rows + static_cast<std::uint64_t>(part.row) * args.row_bytes;
      Mover::Spread({row, args.row_bytes, part}, shared.to, thread, shared.mover);
    }
  }

 private:
  // The destination of a route, or null if it has none or is dropped.
  EPD_HOST_DEVICE static const RecvTarget* Find(const Args& args, const PlanRoute& route) {
    if (route.dst_rank < 0 || route.dst_rank >= args.num_ranks || route.slot < 0) return nullptr;
    const RecvTarget* target = args.targets + route.dst_rank;
    return route.slot < target->capacity ? target : nullptr;
  }

  // The place of each route, and its weight.
  EPD_HOST_DEVICE static void FindTargets(const Args& args, const RowPart& part,
                                          const ThreadPosition& thread,
                                          TokenRows<std::uint8_t>& to) {
    for (std::int32_t k = thread.index; k < args.top_k; k += thread.num_threads) {
      const std::int64_t flat = part.row * args.top_k + k;
      const PlanRoute route = args.table[flat];
      const bool open = args.gate.Open();
      const RecvTarget* target = open ? Find(args, route) : nullptr;
      to.of_route[k] = target == nullptr
                           ? nullptr
                           : target->rows + static_cast<std::uint64_t>(route.slot) * args.row_bytes;
      if (open && part.part == 0) PushWeight(args, flat, route, target);
    }
  }

  EPD_HOST_DEVICE static void PushWeight(const Args& args, std::int64_t flat,
                                         const PlanRoute& route, const RecvTarget* target) {
    // A table is trusted no further than its checksum goes.
    if (route.dst_rank < -1 || route.dst_rank >= args.num_ranks || route.slot < 0) {
      Note(args.report, KernelFault::kPlanRoute, flat);
    }
    if (target == nullptr || target->weights == nullptr) return;
    target->weights[route.slot] = args.weights != nullptr ? args.weights[flat] : 0.0f;
  }
};

}  // namespace epd::cuda
