// Scatter, one copy per destination rank: the receiver's half, which runs where the receive buffer
// is and expands each landed row to the slots of all its routes.
//
//   IndexLandings   whose slot is whose; which landings are sound; marks cleared
//   MarkLandings    each entry claims its slot
//   VerifyMarks     every live slot of a source that lands has been claimed
//   ZeroPadding     zeros in padding and tail; everywhere on a fault
//   ExpandLandings  rows and weights, each row read once
//
// Landings are written by other processes. Whatever stands in them, nothing outside the receive
// buffer is written and nothing behind a landing's max_rows is read; and before anything is expanded
// it is known that each source fills exactly the slots that the counts give it, so no slot keeps
// old bytes. A landing that changes afterwards can only change the values of its sender's own rows. Slots of a source that is
// read where it lies are left as they are, and no landing may claim one.
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/landing.h"
#include "kernels/cuda/recv_index.h"
#include "kernels/cuda/report.h"

namespace epd::cuda {

// A landing at this rank as the receiver sees it.
struct LandingSource {
  const std::uint8_t* base = nullptr;  // aligned to 64 bytes
  std::uint64_t bytes = 0;
  std::int64_t max_rows = 0;  // or kReadWhereTheyLie
};

// One route of one landed row; also the number that claims a slot.
struct LandedRoute {
  std::int32_t source;
  std::int32_t k;
  std::int64_t row;
};

struct LandRowsArgs {
  RecvIndex index;
  std::uint64_t plan_id = 0;
  std::uint64_t row_bytes = 0;
  const LandingSource* sources = nullptr;  // [R]; null: peers wrote the receive buffer themselves
  std::uint8_t* recv_rows = nullptr;       // [C, row_bytes]
  float* recv_weights = nullptr;           // [C], or null
  std::int64_t capacity = 0;               // C
  std::int32_t num_parts = 1;
  // Scratch.
  std::int64_t* num_rows = nullptr;  // [R] rows landed; 0 where the landing is not sound
  std::int64_t* marks = nullptr;     // [C] which route claimed the slot, or -1
  ReportWord* report = nullptr;
  Gate gate;

  EPD_HOST_DEVICE std::int32_t TopK() const { return index.spec.top_k; }
  // Rows of all sources take turns, so that a warp's task does not depend on how full landings are.
  EPD_HOST_DEVICE std::int64_t NumRowTasks() const {
    return index.spec.max_tokens * index.spec.num_ranks;
  }
  EPD_HOST_DEVICE LandedRoute RouteOf(std::int64_t row_task, std::int32_t k) const {
    return {static_cast<std::int32_t>(row_task % index.spec.num_ranks), k,
            row_task / index.spec.num_ranks};
  }
  EPD_HOST_DEVICE bool Landed(const LandedRoute& route) const {
    return route.row < num_rows[route.source];
  }
  EPD_HOST_DEVICE std::int64_t ClaimOf(const LandedRoute& route) const {
    return (route.row * index.spec.num_ranks + route.source) * TopK() + route.k;
  }
  // One load of each word: what is checked is what is used.
  EPD_HOST_DEVICE LandingEntry EntryOf(const LandedRoute& route) const {
    const auto* entries = reinterpret_cast<const volatile LandingEntry*>(
        sources[route.source].base + sizeof(LandingHeader));
    const volatile LandingEntry& entry = entries[route.row * TopK() + route.k];
    return {entry.slot, entry.weight};
  }
  EPD_HOST_DEVICE const std::uint8_t* RowOf(const LandedRoute& route) const {
    return sources[route.source].base + LandingRowsOffset(sources[route.source].max_rows, TopK()) +
           static_cast<std::uint64_t>(route.row) * row_bytes;
  }
};

struct IndexLandings {
  using Args = LandRowsArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = kRecvIndexPhases;
  static constexpr std::int64_t kSlotsPerUnit = 4096;

  // The first block makes the index, the others clear marks.
  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return 1 + (args.sources != nullptr ? CeilDiv(args.capacity, kSlotsPerUnit) : 0);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    if (thread.unit == 0) {
      FillRecvIndex<kPhase>(args.index, thread);
      if (kPhase == 0 && args.sources != nullptr && Gate{args.gate.status, nullptr}.Open()) {
        for (std::int32_t s = thread.index; s < args.index.spec.num_ranks;
             s += thread.num_threads) {
          OpenSource(args, s);
        }
      }
    } else if constexpr (kPhase == 0) {
      const std::int64_t begin = (thread.unit - 1) * kSlotsPerUnit;
      for (std::int64_t i = thread.index; i < kSlotsPerUnit; i += thread.num_threads) {
        if (begin + i < args.capacity) args.marks[begin + i] = -1;
      }
    }
  }

 private:
  EPD_HOST_DEVICE static void OpenSource(const Args& args, std::int32_t s) {
    const LandingSource& source = args.sources[s];
    args.num_rows[s] = 0;
    if (source.max_rows == 0 || source.max_rows == kReadWhereTheyLie) return;
    if (source.base == nullptr ||
        source.bytes < LandingBytes(source.max_rows, args.TopK(), args.row_bytes)) {
      return Note(args.report, KernelFault::kStageTruncated, s);
    }
    const auto& header = *reinterpret_cast<const volatile LandingHeader*>(source.base);
    const std::int64_t rows = header.num_rows;
    if (header.magic != kLandingMagic) return Note(args.report, KernelFault::kStageMagic, s);
    if (header.plan_id != args.plan_id) return Note(args.report, KernelFault::kStagePlanId, s);
    if (header.rank != static_cast<std::uint32_t>(s)) {
      return Note(args.report, KernelFault::kStageRank, s);
    }
    if (header.row_bytes != args.row_bytes) {
      return Note(args.report, KernelFault::kStageRowBytes, s);
    }
    if (rows > source.max_rows) return Note(args.report, KernelFault::kStageNumRows, s);
    args.num_rows[s] = rows;
  }
};

struct MarkLandings {
  using Args = LandRowsArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.NumRowTasks() * args.TopK(), kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t n = thread.unit * thread.num_threads + thread.index;
    if (n >= args.NumRowTasks() * args.TopK() || !Gate{args.gate.status, nullptr}.Open()) return;
    const LandedRoute route =
        args.RouteOf(n / args.TopK(), static_cast<std::int32_t>(n % args.TopK()));
    if (!args.Landed(route)) return;
    const std::int32_t slot = args.EntryOf(route).slot;
    if (slot == -1) return;
    if (args.index.SourceOf(slot) != route.source) {
      Note(args.report, KernelFault::kStageRouteSlot, args.ClaimOf(route));
    } else if (slot < args.capacity) {
      args.marks[slot] = args.ClaimOf(route);
    }
  }
};

struct VerifyMarks {
  using Args = LandRowsArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.capacity, kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t slot = thread.unit * thread.num_threads + thread.index;
    if (slot >= args.capacity || !Gate{args.gate.status, nullptr}.Open()) return;
    const std::int32_t source = args.index.SourceOf(slot);
    if (source < 0 || args.sources[source].max_rows == kReadWhereTheyLie) return;
    if (args.marks[slot] < 0) {
      Note(args.report, KernelFault::kStageRouteCount, slot);
    }
  }
};

template <typename Mover>
struct ZeroPadding {
  using Args = LandRowsArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 1024;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.capacity, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t slot = thread.Task();
    if (slot >= args.capacity) return;
    if (args.gate.Open() && args.index.SourceOf(slot) >= 0) return;
    Mover::Zero(args.recv_rows + static_cast<std::uint64_t>(slot) * args.row_bytes, args.row_bytes,
                {slot, 0, 1}, thread);
    if (args.recv_weights != nullptr && thread.InWarp() == 0) args.recv_weights[slot] = 0.0f;
  }
};

template <typename Mover>
struct ExpandLandings {
  using Args = LandRowsArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.NumRowTasks() * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    if (part.row >= args.NumRowTasks() || !args.gate.Open()) return;
    const LandedRoute first = args.RouteOf(part.row, 0);
    if (!args.Landed(first)) return;
    for (std::int32_t k = 0; k < args.TopK(); k += kFanOut) {
      RowTargets to;
      EPD_UNROLL
      for (int j = 0; j < kFanOut; ++j) {
        to.row[j] = k + j < args.TopK() ? Open(args, part, k + j, thread) : nullptr;
      }
      Mover::Copy({args.RowOf(first), to, args.row_bytes, part}, thread, shared);
    }
  }

 private:
  // The slot of a route, with its weight written by the first part; null if it has none, it is
  // dropped, or another route claims it.
  EPD_HOST_DEVICE static std::uint8_t* Open(const Args& args, const RowPart& part, std::int32_t k,
                                            const ThreadPosition& thread) {
    const LandedRoute route = args.RouteOf(part.row, k);
    const LandingEntry entry = args.EntryOf(route);
    if (entry.slot < 0 || entry.slot >= args.capacity) return nullptr;
    if (args.marks[entry.slot] != args.ClaimOf(route)) return nullptr;
    if (part.part == 0 && thread.InWarp() == 0 && args.recv_weights != nullptr) {
      args.recv_weights[entry.slot] = entry.weight;
    }
    return args.recv_rows + static_cast<std::uint64_t>(entry.slot) * args.row_bytes;
  }
};

}  // namespace epd::cuda
