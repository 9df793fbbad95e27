// Scatter, one copy per destination rank: the sender's half. The receiver's is land_rows.h.
//
//   CountLandings, SumLandings   tokens per destination, per tile; what landings held before is void
//   PlaceLandings   which row of which landing each route's token becomes
//   OpenLandings    one block: the landings' headers, and whether they have room
//   PushLandings    entries and rows
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/landing.h"
#include "kernels/cuda/report.h"
#include "kernels/cuda/tiles.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A place in a landing, in the sender's scratch: the row of the token on its first route there;
// -1 on its other routes there and where there is no route.
using LandingPlace = std::int32_t;

// The destination of a route if it is the first of its token that leads there, else -1.
struct DestinationColumn {
  const PlanRoute* table = nullptr;  // [T, K]
  std::int32_t top_k = 1;
  std::int32_t num_ranks = 0;
  ReportWord* report = nullptr;

  EPD_HOST_DEVICE std::int32_t Read(std::int64_t flat, bool notes_faults) const {
    const PlanRoute route = table[flat];
    if (route.dst_rank < -1 || route.dst_rank >= num_ranks || route.slot < 0) {
      if (notes_faults) Note(report, KernelFault::kPlanRoute, flat);
      return -1;
    }
    for (std::int64_t i = flat - flat % top_k; i < flat; ++i) {
      if (table[i].dst_rank == route.dst_rank) return -1;
    }
    return route.dst_rank;
  }
};

// A landing at a destination as its sender sees it.
struct LandingTarget {
  std::uint8_t* base = nullptr;  // aligned to 64 bytes
  std::uint64_t bytes = 0;
  std::int64_t max_rows = 0;  // or kReadWhereTheyLie
};

struct PushLandingArgs {
  DestinationColumn routes;  // table, K, R
  Tiling tiling;             // T, K, R
  RoutingSpec spec;          // expert_owner on the device
  std::int32_t rank = 0;
  std::uint64_t plan_id = 0;
  const std::uint8_t* rows = nullptr;  // [T, row_bytes]
  const float* weights = nullptr;      // [T, K], or null
  std::uint64_t row_bytes = 0;
  const LandingTarget* targets = nullptr;  // [R] this rank's landing at each rank
  std::int32_t num_parts = 1;
  // Scratch.
  std::int32_t* tiles = nullptr;         // [tiles, R]
  std::int32_t* num_landed = nullptr;    // [R]
  std::uint64_t* rows_offset = nullptr;  // [R]; 0: closed
  LandingPlace* places = nullptr;        // [T, K]
  ReportWord* report = nullptr;
  Gate gate;
};

struct CountLandings {
  using Args = PushLandingArgs;
  using Counting = CountTiles<DestinationColumn>;
  using Shared = Counting::Shared;
  static constexpr std::int32_t kThreads = Counting::kThreads;
  static constexpr int kPhases = Counting::kPhases;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Units(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    Counting::Run<kPhase>({args.routes, args.tiling, args.tiles}, thread, shared);
  }
};

struct SumLandings {
  using Args = PushLandingArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = SumTiles::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Chunks(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    SumTiles::Run<kPhase>({args.tiling, args.tiles, args.num_landed}, thread, shared);
    const std::int64_t d = thread.unit * thread.num_threads + thread.index;
    if (d < args.spec.num_ranks && Gate{args.gate.status, nullptr}.Open()) Close(args.targets[d]);
  }

 private:
  // What an operation before has left there must not be taken for this one's.
  EPD_HOST_DEVICE static void Close(const LandingTarget& target) {
    if (target.base == nullptr || target.bytes < sizeof(LandingHeader)) return;
    *reinterpret_cast<LandingHeader*>(target.base) = LandingHeader{};
  }
};

struct PlaceLandings {
  using Args = PushLandingArgs;
  using Shared = TileColumns;
  static constexpr std::int32_t kThreads = kTileThreads;
  static constexpr int kPhases = 2;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Units(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const Tile tile = TileOf(args.tiling, thread);
    if constexpr (kPhase == 0) {
      LoadTile(args.routes, tile, thread, shared);
    } else if (tile.column < args.spec.num_ranks) {
      std::int32_t row = args.tiles[tile.number * args.spec.num_ranks + tile.column];
      for (std::int32_t i = 0; i < tile.num_routes; ++i) {
        if (shared.column[i] == tile.column) args.places[tile.first_route + i] = row++;
      }
    }
    if (kPhase == 1 && tile.is_first_chunk) {
      for (std::int32_t i = thread.index; i < tile.num_routes; i += thread.num_threads) {
        if (shared.column[i] < 0) args.places[tile.first_route + i] = -1;
      }
    }
  }
};

struct OpenLandings {
  using Args = PushLandingArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args&) { return 1; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const bool open = args.gate.Open();
    for (std::int32_t d = thread.index; d < args.spec.num_ranks; d += thread.num_threads) {
      args.rows_offset[d] = open ? OpenOne(args, d) : 0;
    }
  }

 private:
  // Offset of the rows, or 0 where nothing may be written.
  EPD_HOST_DEVICE static std::uint64_t OpenOne(const Args& args, std::int32_t d) {
    const LandingTarget& target = args.targets[d];
    if (target.max_rows == kReadWhereTheyLie) return 0;
    if (args.num_landed[d] == 0 && target.base == nullptr) return 0;
    if (args.num_landed[d] > target.max_rows ||
        LandingBytes(target.max_rows, args.spec.top_k, args.row_bytes) > target.bytes) {
      Note(args.report, KernelFault::kBufferTooSmall, d);
      return 0;
    }
    LandingHeader header{};
    header.magic = kLandingMagic;
    header.plan_id = args.plan_id;
    header.row_bytes = args.row_bytes;
    header.rank = static_cast<std::uint32_t>(args.rank);
    header.num_rows = static_cast<std::uint32_t>(args.num_landed[d]);
    *reinterpret_cast<LandingHeader*>(target.base) = header;
    return LandingRowsOffset(target.max_rows, args.spec.top_k);
  }
};

template <typename Mover>
struct PushLandings {
  using Args = PushLandingArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.tiling.num_tokens * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    if (part.row >= args.tiling.num_tokens || !args.gate.Open()) return;
    const std::uint8_t* row = args.rows + static_cast<std::uint64_t>(part.row) * args.row_bytes;
    for (std::int32_t k = 0; k < args.spec.top_k; k += kFanOut) {
      RowTargets to;
      EPD_UNROLL
      for (int j = 0; j < kFanOut; ++j) {
        to.row[j] = k + j < args.spec.top_k ? Open(args, part, k + j, thread) : nullptr;
      }
      Mover::Copy({row, to, args.row_bytes, part}, thread, shared);
    }
  }

 private:
  // The landed row of route k, with its entries written by the first part; null if another route
  // of the token brings it, or none.
  EPD_HOST_DEVICE static std::uint8_t* Open(const Args& args, const RowPart& part, std::int32_t k,
                                            const ThreadPosition& thread) {
    const std::int64_t first = part.row * args.spec.top_k;
    const LandingPlace place = args.places[first + k];
    if (place < 0) return nullptr;
    const std::int32_t dst = args.routes.table[first + k].dst_rank;
    if (args.rows_offset[dst] == 0) return nullptr;
    std::uint8_t* base = args.targets[dst].base;
    if (part.part == 0) {
      auto* entries = reinterpret_cast<LandingEntry*>(base + sizeof(LandingHeader)) +
                      std::int64_t{place} * args.spec.top_k;
      for (std::int32_t i = thread.InWarp(); i < args.spec.top_k; i += kWarpThreads) {
        const PlanRoute route = args.routes.table[first + i];
        const bool there = route.dst_rank == dst;
        const float weight = there && args.weights != nullptr ? args.weights[first + i] : 0.0f;
        entries[i] = {there ? route.slot : -1, weight};
      }
    }
    return base + args.rows_offset[dst] + static_cast<std::uint64_t>(place) * args.row_bytes;
  }
};

}  // namespace epd::cuda
