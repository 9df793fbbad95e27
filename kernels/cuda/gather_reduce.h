// Gather and reduce on the device: combine, and the backward of dispatch. The numbers are those of
// kernels/gather_reduce_rows.h: fp32 sums in k order from the first live route, rounded once.
//
// A block takes a token, or a part of each of its rows. It finds the token's live rows once and lines them up in shared memory;
// then each thread adds one column of 16 bytes at a time, of all rows. It loads kWordsInFlight words before it adds the first,
// whatever K is: of so many rows or, where a token has fewer, of several columns. So a thread needs 64 registers at most, a thousand
// of them share an SM, and an SM has 128 KB on their way. Rows are read where they lie, in the staging of the ranks that made them.
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
  static constexpr std::int32_t kThreads = 1024;
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
  // At most: launches have fewer (BlockShape in launch.h). It bounds the registers, too: 64 for each of 1024 threads.
  static constexpr std::int32_t kThreads = 1024;
  static constexpr int kPhases = 3;
  using Shared = TokenRows<const std::uint8_t>;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return args.num_tokens * args.num_parts;
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.unit, args.num_parts);
    if constexpr (kPhase == 0) {
      FindRows(args, part, thread, shared);
    } else if constexpr (kPhase == 1) {
      LineUp(args.top_k, thread, shared);
    } else {
      const auto words = static_cast<std::int64_t>(args.row_bytes / kWidth);
      Write(ColumnsOf(words, part, thread),
            args.out + static_cast<std::uint64_t>(part.row) * args.row_bytes, shared);
    }
  }

 private:
  using Bits = typename Element<kType>::Bits;
  static constexpr int kElements = kWidth / static_cast<int>(sizeof(Bits));
  // Of a thread.
  static constexpr int kWordsInFlight = 8;

  EPD_HOST_DEVICE static const GatherSource* Find(const Args& args, const PlanRoute& route) {
    if (route.dst_rank < 0 || route.dst_rank >= args.num_ranks || route.slot < 0) return nullptr;
    const GatherSource* source = args.sources + route.dst_rank;
    return source->Has(route.slot) ? source : nullptr;
  }

  // The row of each route, and its weight.
  EPD_HOST_DEVICE static void FindRows(const Args& args, const RowPart& part,
                                       const ThreadPosition& thread, Shared& shared) {
    for (std::int32_t k = thread.index; k < args.top_k; k += thread.num_threads) {
      const std::int64_t flat = part.row * args.top_k + k;
      const PlanRoute route = args.table[flat];
      const GatherSource* source = args.gate.Open() ? Find(args, route) : nullptr;
      shared.of_route[k] =
          source == nullptr
              ? nullptr
              : source->rows + static_cast<std::uint64_t>(route.slot) * args.row_bytes;
      if (part.part != 0 || args.out_weights == nullptr) continue;
      const bool has = source != nullptr && source->weights != nullptr;
      args.out_weights[flat] = has ? source->weights[route.slot] : 0.0f;
    }
  }

  EPD_HOST_DEVICE static void Write(const Columns& columns, std::uint8_t* out,
                                    const Shared& shared) {
    if (shared.num_live == 0) {
      Zero(columns, out);
    } else if (shared.num_live == 1) {
      Copy(columns, shared.live[0], out);
    } else if (shared.num_live <= 2) {
      Sum<2>(columns, shared, out);
    } else if (shared.num_live <= 4) {
      Sum<4>(columns, shared, out);
    } else {
      Sum<kWordsInFlight>(columns, shared, out);
    }
  }

  EPD_HOST_DEVICE static void Zero(const Columns& columns, std::uint8_t* out) {
    for (std::int64_t at = columns.first; at < columns.end; at += columns.stride) {
      StoreStreaming<kWidth>(out + at * kWidth, Word<kWidth>{});
    }
  }

  // One route's row keeps its bits.
  EPD_HOST_DEVICE static void Copy(const Columns& columns, const std::uint8_t* row,
                                   std::uint8_t* out) {
    for (std::int64_t at = columns.first; at < columns.end; at += columns.stride * kWordsInFlight) {
      Word<kWidth> word[kWordsInFlight] = {};  // As in VectorMover.
      EPD_UNROLL
      for (int u = 0; u < kWordsInFlight; ++u) {
        const std::int64_t i = at + columns.stride * u;
        if (i < columns.end) word[u] = LoadStreaming<kWidth>(row + i * kWidth);
      }
      EPD_UNROLL
      for (int u = 0; u < kWordsInFlight; ++u) {
        const std::int64_t i = at + columns.stride * u;
        if (i < columns.end) StoreStreaming<kWidth>(out + i * kWidth, word[u]);
      }
    }
  }

  // Of tokens with 2 to kRows live rows; with kWordsInFlight of any number.
  template <int kRows>
  EPD_HOST_DEVICE static void Sum(const Columns& columns, const Shared& shared, std::uint8_t* out) {
    constexpr int kColumns = kWordsInFlight / kRows;
    for (std::int64_t at = columns.first; at < columns.end; at += columns.stride * kColumns) {
      Word<kWidth> word[kColumns][kRows] = {};
      EPD_UNROLL
      for (int u = 0; u < kColumns; ++u) {
        const std::int64_t i = at + columns.stride * u;
        if (i < columns.end) Load<kRows>(shared.live, shared.num_live, i, word[u]);
      }
      EPD_UNROLL
      for (int u = 0; u < kColumns; ++u) {
        const std::int64_t i = at + columns.stride * u;
        if (i >= columns.end) continue;
        float sum[kElements];
        Begin(word[u][0], sum);
        Add<kRows, 1>(word[u], shared.num_live, sum);
        if constexpr (kRows == kWordsInFlight) {
          AddRest(shared, i, word[u], sum);
        }
        Store(sum, out + i * kWidth);
      }
    }
  }

  // Word i of up to kRows of `num` rows.
  template <int kRows>
  EPD_HOST_DEVICE static void Load(const std::uint8_t* const* rows, std::int32_t num,
                                   std::int64_t i, Word<kWidth>* word) {
    EPD_UNROLL
    for (int j = 0; j < kRows; ++j) {
      if (j < num) word[j] = LoadStreaming<kWidth>(rows[j] + i * kWidth);
    }
  }

  // Column i of the rows behind the first kWordsInFlight.
  EPD_HOST_DEVICE static void AddRest(const Shared& shared, std::int64_t i, Word<kWidth>* word,
                                      float* sum) {
    for (std::int32_t k = kWordsInFlight; k < shared.num_live; k += kWordsInFlight) {
      Load<kWordsInFlight>(shared.live + k, shared.num_live - k, i, word);
      Add<kWordsInFlight, 0>(word, shared.num_live - k, sum);
    }
  }

  // From word[kFirst] on, in order.
  template <int kRows, int kFirst>
  EPD_HOST_DEVICE static void Add(const Word<kWidth>* word, std::int32_t num, float* sum) {
    EPD_UNROLL
    for (int j = kFirst; j < kRows; ++j) {
      if (j >= num) continue;
      float value[kElements];
      Begin(word[j], value);
      EPD_UNROLL
      for (int e = 0; e < kElements; ++e) sum[e] += value[e];
    }
  }

  EPD_HOST_DEVICE static void Begin(const Word<kWidth>& word, float* sum) {
    Bits bits[kElements];
    memcpy(bits, &word, kWidth);
    EPD_UNROLL
    for (int e = 0; e < kElements; ++e) sum[e] = Element<kType>::Widen(bits[e]);
  }

  EPD_HOST_DEVICE static void Store(const float* sum, std::uint8_t* out) {
    Bits bits[kElements];
    EPD_UNROLL
    for (int e = 0; e < kElements; ++e) bits[e] = Element<kType>::Narrow(sum[e]);
    Word<kWidth> word;
    memcpy(&word, bits, kWidth);
    StoreStreaming<kWidth>(out, word);
  }
};

}  // namespace epd::cuda
