// The routing plan on the device: the steps of BuildRoutingPlan (kernels/routing_plan.h), same bytes.
//
//   CountTiles<ExpertColumn>, SumTiles   counts[E], what a rank announces
//   ... the ranks exchange their counts ...
//   CountTiles<ExpertColumn>, SumTiles   again, into scratch: tiles and own counts
//   PlaceExperts   one block: checks the counts; slots and routes of each expert; header; outputs
//   PlaceRoutes    table and order
//   SumPlan        partial sums of the checksum
//   FinishPlan     the checksum and the zeros behind the used part, or zeros everywhere on a fault
#pragma once

#include <cstdint>

#include "kernels/cuda/plan_layout.h"
#include "kernels/cuda/report.h"
#include "kernels/cuda/tiles.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// Which expert each route names; notes kExpertIndex, and reads a bad index as no route.
struct ExpertColumn {
  const void* topk = nullptr;  // [T, K]
  IndexType type = IndexType::kInt32;
  std::int32_t num_experts = 0;
  ReportWord* report = nullptr;

  EPD_HOST_DEVICE std::int32_t Read(std::int64_t flat, bool notes_faults) const {
    const std::int64_t expert = type == IndexType::kInt32
                                    ? static_cast<const std::int32_t*>(topk)[flat]
                                    : static_cast<const std::int64_t*>(topk)[flat];
    if (expert < 0) return -1;
    if (expert < num_experts) return static_cast<std::int32_t>(expert);
    if (notes_faults) Note(report, KernelFault::kExpertIndex, flat);
    return -1;
  }
};

// What the steps of one build share. Pointers are device pointers, also spec.expert_owner.
struct BuildPlanOnDeviceArgs {
  RoutingSpec spec;
  std::int32_t rank = 0;
  PlanIds ids;
  // Where they stand if they are not known before the launch, as in a graph that is replayed; or null.
  const PlanIds* ids_at = nullptr;
  ExpertColumn experts;
  Tiling tiling;                         // T, K, E
  const std::int32_t* counts = nullptr;  // [R, E] as exchanged
  std::uint8_t* plan = nullptr;          // [RoutingPlanBytes(spec)], aligned to 16 bytes
  std::int32_t* token_counts = nullptr;  // [NumLocalExperts(spec, rank)]
  std::int32_t* total_recv = nullptr;    // [1]
  PlanScratch scratch;
  ReportWord* report = nullptr;
  const std::uint32_t* status = nullptr;  // the answer to the announce, or null

  EPD_HOST_DEVICE bool Open() const { return Gate{status, report}.Open(); }
};

// Notes kCountRange and kTooManySlots faults; the threads of one block share the work. The index is
// source * E + expert.
EPD_HOST_DEVICE inline void NoteBadCounts(const RoutingSpec& spec, const std::int32_t* counts,
                                          const ThreadPosition& thread, ReportWord* report) {
  const std::int64_t max_routes = spec.max_tokens * spec.top_k;
  for (std::int32_t s = thread.index; s < spec.num_ranks; s += thread.num_threads) {
    std::int64_t sum = 0;
    for (std::int32_t e = 0; e < spec.num_experts; ++e) {
      const std::int64_t rows = RowsOf(spec, counts, s, e);
      if (rows < 0 || (sum += rows) > max_routes) {
        Note(report, KernelFault::kCountRange, std::int64_t{s} * spec.num_experts + e);
        break;
      }
    }
  }
}

struct PlaceExperts {
  using Args = BuildPlanOnDeviceArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 1024;
  static constexpr int kPhases = 4;

  EPD_HOST_DEVICE static std::int64_t Units(const Args&) { return 1; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    if constexpr (kPhase == 0) {
      NoteBadCounts(args.spec, args.counts, thread, args.report);
      for (std::int32_t e = thread.index; e < args.spec.num_experts; e += thread.num_threads) {
        AddUpExpert(args, e);
      }
    } else if constexpr (kPhase == 1) {
      for (std::int32_t d = thread.index; d < args.spec.num_ranks; d += thread.num_threads) {
        WalkRank(args, d);
      }
    } else if constexpr (kPhase == 2) {
      if (thread.index == 0) WriteHeader(args);
    } else {
      const PlanSections plan = SectionsOf(args.plan, args.spec, args.tiling.num_tokens);
      for (std::int32_t e = thread.index; e < args.spec.num_experts; e += thread.num_threads) {
        const std::int32_t owner = ExpertOwner(args.spec, e);
        plan.experts[e].first_route += static_cast<std::int32_t>(args.scratch.rank_routes[owner]);
      }
    }
  }

 private:
  // Rows of an expert, all and from the ranks before this one; and its column of the plan's counts.
  EPD_HOST_DEVICE static void AddUpExpert(const Args& args, std::int32_t e) {
    const PlanSections plan = SectionsOf(args.plan, args.spec, args.tiling.num_tokens);
    std::int64_t rows = 0;
    std::int64_t before = 0;
    for (std::int32_t s = 0; s < args.spec.num_ranks; ++s) {
      if (s == args.rank) before = rows;
      const std::int64_t at = std::int64_t{s} * args.spec.num_experts + e;
      plan.counts[at] = args.counts[at];
      rows += args.counts[at];
    }
    args.scratch.expert_rows[e] = rows;
    args.scratch.expert_rows_before[e] = before;
    if (RowsOf(args.spec, args.counts, args.rank, e) != args.scratch.own_counts[e]) {
      Note(args.report, KernelFault::kCountMismatch, e);
    }
  }

  // Slots of a rank's experts, and routes counted from the rank's first.
  EPD_HOST_DEVICE static void WalkRank(const Args& args, std::int32_t dst) {
    const PlanSections plan = SectionsOf(args.plan, args.spec, args.tiling.num_tokens);
    const std::int64_t alignment = EffectiveAlignment(args.spec);
    const ExpertRange range = OwnedExpertRange(args.spec, dst);
    std::int64_t zone = 0;
    std::int64_t route = 0;
    std::int32_t local = 0;
    for (std::int32_t e = range.begin; e < range.end; ++e) {
      if (ExpertOwner(args.spec, e) != dst) continue;
      const std::int64_t slots = AlignUp(args.scratch.expert_rows[e], alignment);
      plan.experts[e] = {static_cast<std::int32_t>(zone + args.scratch.expert_rows_before[e]),
                         static_cast<std::int32_t>(route)};
      if (dst == args.rank) args.token_counts[local++] = static_cast<std::int32_t>(slots);
      zone += slots;
      route += args.scratch.own_counts[e];
    }
    if (zone > kMaxSlots) Note(args.report, KernelFault::kTooManySlots, dst);
    if (dst == args.rank) *args.total_recv = static_cast<std::int32_t>(zone);
    args.scratch.rank_routes[dst] = route;
  }

  // Turns routes per rank into the routes before it, and writes all of the header but the checksum.
  EPD_HOST_DEVICE static void WriteHeader(const Args& args) {
    std::int64_t num_routes = 0;
    for (std::int32_t d = 0; d < args.spec.num_ranks; ++d) {
      const std::int64_t routes = args.scratch.rank_routes[d];
      args.scratch.rank_routes[d] = num_routes;
      num_routes += routes;
    }
    // The table's alignment leaves a gap behind an odd number of counts.
    const std::int64_t num_counts = std::int64_t{args.spec.num_ranks} * args.spec.num_experts;
    if (num_counts % 2 != 0) {
      SectionsOf(args.plan, args.spec, args.tiling.num_tokens).counts[num_counts] = 0;
    }
    *reinterpret_cast<PlanHeader*>(args.plan) =
        MakePlanHeader(args.spec, args.rank, args.ids_at != nullptr ? *args.ids_at : args.ids,
                       args.tiling.num_tokens, num_routes);
  }

  static constexpr std::int64_t kMaxSlots = 0x7fffffff;
};

struct PlaceRoutes {
  using Args = BuildPlanOnDeviceArgs;
  using Shared = TileColumns;
  static constexpr std::int32_t kThreads = kTileThreads;
  static constexpr int kPhases = 2;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Units(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const Tile tile = TileOf(args.tiling, thread);
    if constexpr (kPhase == 0) {
      LoadTile(args.experts, tile, thread, shared);
    } else {
      if (!args.Open()) return;
      if (tile.is_first_chunk) MarkMissing(args, tile, thread, shared);
      if (tile.column < args.spec.num_experts) Place(args, tile, shared);
    }
  }

 private:
  EPD_HOST_DEVICE static void MarkMissing(const Args& args, const Tile& tile,
                                          const ThreadPosition& thread, const Shared& shared) {
    const PlanSections plan = SectionsOf(args.plan, args.spec, args.tiling.num_tokens);
    for (std::int32_t i = thread.index; i < tile.num_routes; i += thread.num_threads) {
      if (shared.column[i] < 0) plan.table[tile.first_route + i] = {-1, 0};
    }
  }

  // The routes of one expert in one tile, in order.
  EPD_HOST_DEVICE static void Place(const Args& args, const Tile& tile, const Shared& shared) {
    const PlanSections plan = SectionsOf(args.plan, args.spec, args.tiling.num_tokens);
    const std::int32_t before =
        args.scratch.tiles[tile.number * args.spec.num_experts + tile.column];
    const std::int32_t owner = ExpertOwner(args.spec, tile.column);
    std::int32_t slot = plan.experts[tile.column].first_slot + before;
    std::int32_t route = plan.experts[tile.column].first_route + before;
    for (std::int32_t i = 0; i < tile.num_routes; ++i) {
      if (shared.column[i] != tile.column) continue;
      const auto flat = static_cast<std::int32_t>(tile.first_route + i);
      plan.table[flat] = {owner, slot++};
      plan.order[route++] = flat;
    }
  }
};

}  // namespace epd::cuda
