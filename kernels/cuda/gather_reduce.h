// Gather and reduce on the device: combine, and the backward of dispatch. The numbers are those of
// kernels/gather_reduce_rows.h: fp32 sums in k order from the first live route, rounded once.
//
// A warp holds a part of a token's row, and each thread kFanOut words at a time: one of each of so many
// routes or, where a token has fewer, several of each. All are loaded before they are added, so that as many
// reads are on their way whatever K is. Rows are read where they lie, in the staging of the ranks that made them.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/element.h"
#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/report.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A rank's expert rows as its peers see them.
struct GatherSource {
  const std::uint8_t* rows = nullptr;  // [num_rows, row_bytes], aligned to 16 bytes
  const float* weights = nullptr;      // [num_rows], or null
  std::int64_t num_rows = 0;           // live; routes at or after it add nothing
  // Where the source itself says how many rows are live, `num_rows` at most. Null: all of them.
  const std::int64_t* live = nullptr;

  EPD_HOST_DEVICE bool Has(std::int64_t slot) const {
    return slot < num_rows && (live == nullptr || slot < *live);
  }
};

struct GatherReduceArgs {
  const PlanRoute* table = nullptr;       // [T, K]
  const GatherSource* sources = nullptr;  // [R]
  std::uint8_t* out = nullptr;            // [T, row_bytes]
  float* out_weights = nullptr;           // [T, K], or null
  std::int64_t num_tokens = 0;
  std::uint64_t row_bytes = 0;
  std::int32_t top_k = 0;
  std::int32_t num_ranks = 0;
  std::int32_t num_parts = 1;
  Gate gate;
};

// Notes routes that lead nowhere; outputs are zeros if there is one. Before GatherReduce, where a
// table comes from memory that somebody else can write.
struct CheckTable {
  struct Args {
    const PlanRoute* table = nullptr;
    std::int64_t num_routes = 0;  // T * K
    std::int32_t num_ranks = 0;
    ReportWord* report = nullptr;
    const std::uint32_t* status = nullptr;
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_routes, kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t flat = thread.unit * thread.num_threads + thread.index;
    if (flat >= args.num_routes || !Gate{args.status, nullptr}.Open()) return;
    const PlanRoute route = args.table[flat];
    if (route.dst_rank < -1 || route.dst_rank >= args.num_ranks || route.slot < 0) {
      Note(args.report, KernelFault::kPlanRoute, flat);
    }
  }
};

template <DataType kType, int kWidth>
struct GatherReduce {
  using Args = GatherReduceArgs;
  using Shared = NoShared;
  // One block fills an SM: half the threads of a scatter, since each holds 8 words of 16 bytes and
  // as many sums in up to 168 registers; ptxas takes 120.
  static constexpr std::int32_t kThreads = 384;
  static constexpr int kPhases = 1;
  static_assert(kThreads * kFanOut * 16 == kBlockBytesInFlight);

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_tokens * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    if (part.row >= args.num_tokens) return;
    const bool open = args.gate.Open();
    if (part.part == 0 && args.out_weights != nullptr) GatherWeights(args, part.row, open, thread);
    const std::int32_t live = open ? CountLive(args, part.row) : 0;
    std::uint8_t* out = args.out + static_cast<std::uint64_t>(part.row) * args.row_bytes;
    if (live == 0) {
      OneRow::Zero(out, args.row_bytes, part, thread);
    } else if (live == 1) {
      CopyOnly(args, part, out, thread, shared);
    } else if (args.top_k <= 2) {
      Reduce<2>(args, part, out, thread);
    } else if (args.top_k <= 4) {
      Reduce<4>(args, part, out, thread);
    } else {
      Reduce<kFanOut>(args, part, out, thread);
    }
  }

 private:
  using Bits = typename Element<kType>::Bits;
  static constexpr int kElements = kWidth / static_cast<int>(sizeof(Bits));
  // As many words of one route at a time as of several.
  using OneRow = VectorMover<kWidth, kFanOut>;
  static_assert(OneRow::kThreads == kThreads);

  struct Sources {
    const std::uint8_t* row[kFanOut];  // null: no live route
  };

  EPD_HOST_DEVICE static const GatherSource* Find(const Args& args, const PlanRoute& route) {
    if (route.dst_rank < 0 || route.dst_rank >= args.num_ranks || route.slot < 0) return nullptr;
    const GatherSource* source = args.sources + route.dst_rank;
    return source->Has(route.slot) ? source : nullptr;
  }

  EPD_HOST_DEVICE static std::int32_t CountLive(const Args& args, std::int64_t token) {
    std::int32_t live = 0;
    for (std::int32_t k = 0; k < args.top_k; ++k) {
      live += Find(args, args.table[token * args.top_k + k]) != nullptr;
    }
    return live;
  }

  // The rows of routes k to k + kFanOut of a token.
  EPD_HOST_DEVICE static Sources RowsFrom(const Args& args, std::int64_t token, std::int32_t k) {
    Sources from;
    EPD_UNROLL
    for (int j = 0; j < kFanOut; ++j) {
      from.row[j] = nullptr;
      if (k + j >= args.top_k) continue;
      const PlanRoute route = args.table[token * args.top_k + k + j];
      const GatherSource* source = Find(args, route);
      if (source == nullptr) continue;
      from.row[j] = source->rows + static_cast<std::uint64_t>(route.slot) * args.row_bytes;
    }
    return from;
  }

  // One route's row keeps its bits.
  EPD_HOST_DEVICE static void CopyOnly(const Args& args, const RowPart& part, std::uint8_t* out,
                                       const ThreadPosition& thread, Shared& shared) {
    RowTargets to = {};
    to.row[0] = out;
    for (std::int32_t k = 0; k < args.top_k; ++k) {
      const PlanRoute route = args.table[part.row * args.top_k + k];
      const GatherSource* source = Find(args, route);
      if (source == nullptr) continue;
      const std::uint8_t* row =
          source->rows + static_cast<std::uint64_t>(route.slot) * args.row_bytes;
      OneRow::Copy({row, to, args.row_bytes, part}, thread, shared);
    }
  }

  struct Sums {
    float sum[kElements];
    bool is_started;
  };

  // Words of a route under way at a time.
  template <int kRoutes>
  static constexpr int kWords = kFanOut / kRoutes;

  // Adds the words at `at` and each kWarpThreads behind it, before `end`, of up to kRoutes rows, in order.
  template <int kRoutes>
  EPD_HOST_DEVICE static void Add(const Sources& from, std::int64_t at, std::int64_t end,
                                  Sums* sums) {
    Word<kWidth> word[kWords<kRoutes>][kRoutes] = {};  // As in VectorMover.
    EPD_UNROLL
    for (int u = 0; u < kWords<kRoutes>; ++u) {
      const std::int64_t i = at + u * kWarpThreads;
      EPD_UNROLL
      for (int j = 0; j < kRoutes; ++j) {
        if (from.row[j] == nullptr || i >= end) continue;
        word[u][j] = LoadStreaming<kWidth>(from.row[j] + i * kWidth);
      }
    }
    EPD_UNROLL
    for (int u = 0; u < kWords<kRoutes>; ++u) {
      EPD_UNROLL
      for (int j = 0; j < kRoutes; ++j) {
        if (from.row[j] != nullptr && at + u * kWarpThreads < end) AddWord(word[u][j], sums[u]);
      }
    }
  }

  EPD_HOST_DEVICE static void AddWord(const Word<kWidth>& word, Sums& sums) {
    Bits bits[kElements];
    memcpy(bits, &word, kWidth);
    EPD_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float value = Element<kType>::Widen(bits[i]);
      sums.sum[i] = sums.is_started ? sums.sum[i] + value : value;
    }
    sums.is_started = true;
  }

  // Of tokens with up to kRoutes routes; with kFanOut of any number.
  template <int kRoutes>
  EPD_HOST_DEVICE static void Reduce(const Args& args, const RowPart& part, std::uint8_t* out,
                                     const ThreadPosition& thread) {
    const auto words = static_cast<std::int64_t>(args.row_bytes / kWidth);
    const std::int64_t end = PartBegin(words, part.part + 1, part.num_parts);
    const Sources first = RowsFrom(args, part.row, 0);
    for (std::int64_t at = PartBegin(words, part.part, part.num_parts) + thread.InWarp(); at < end;
         at += kWarpThreads * kWords<kRoutes>) {
      Sums sums[kWords<kRoutes>] = {};
      Add<kRoutes>(first, at, end, sums);
      if constexpr (kRoutes == kFanOut) {
        for (std::int32_t k = kFanOut; k < args.top_k; k += kFanOut) {
          Add<kRoutes>(RowsFrom(args, part.row, k), at, end, sums);
        }
      }
      EPD_UNROLL
      for (int u = 0; u < kWords<kRoutes>; ++u) {
        const std::int64_t i = at + u * kWarpThreads;
        if (i < end) StoreSums(sums[u], out + i * kWidth);
      }
    }
  }

  EPD_HOST_DEVICE static void StoreSums(const Sums& sums, std::uint8_t* out) {
    Bits bits[kElements];
    EPD_UNROLL
    for (int i = 0; i < kElements; ++i) bits[i] = Element<kType>::Narrow(sums.sum[i]);
    Word<kWidth> word;
    memcpy(&word, bits, kWidth);
    StoreStreaming<kWidth>(out, word);
  }

  EPD_HOST_DEVICE static void GatherWeights(const Args& args, std::int64_t token, bool open,
                                            const ThreadPosition& thread) {
    for (std::int32_t k = thread.InWarp(); k < args.top_k; k += kWarpThreads) {
      const std::int64_t flat = token * args.top_k + k;
      const PlanRoute route = args.table[flat];
      const GatherSource* source = open ? Find(args, route) : nullptr;
      const bool has = source != nullptr && source->weights != nullptr;
      args.out_weights[flat] = has ? source->weights[route.slot] : 0.0f;
    }
  }
};

}  // namespace epd::cuda
