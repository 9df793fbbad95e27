// One row to several places: what every scatter step does with a warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/cuda/vector_access.h"
#include "kernels/host_device.h"
#include "kernels/routing_spec.h"

namespace epd::cuda {

// Destinations that a warp serves while it holds a part of a row in registers. With more, the row
// is read again for the next ones, out of L2.
inline constexpr int kFanOut = 8;

struct RowTargets {
  std::uint8_t* row[kFanOut];  // null: none
};

EPD_HOST_DEVICE inline bool HasTarget(const RowTargets& to) {
  bool has = false;
  EPD_UNROLL
  for (int j = 0; j < kFanOut; ++j) has = has || to.row[j] != nullptr;
  return has;
}

// Where one token's rows lie, in the shared memory of a block that takes the token or a part of each of its rows: the rows
// that are added up for it, or the places that its row goes to. Found once, in two phases.
template <typename Byte>
struct TokenRows {
  Byte* of_route[kMaxTopK];  // [K] by the first phase, a thread each; null: none
  Byte* live[kMaxTopK];      // [num_live] the others in k order, by LineUp
  std::int32_t num_live;
};

// The second phase: each route's row behind those before it.
template <typename Byte>
EPD_HOST_DEVICE void LineUp(std::int32_t top_k, const ThreadPosition& thread,
                            TokenRows<Byte>& rows) {
  for (std::int32_t k = thread.index; k < top_k; k += thread.num_threads) {
    std::int32_t before = 0;
    for (std::int32_t j = 0; j < k; ++j) before += rows.of_route[j] != nullptr;
    const bool is_live = rows.of_route[k] != nullptr;
    if (is_live) rows.live[before] = rows.of_route[k];
    if (k == top_k - 1) rows.num_live = before + is_live;
  }
}

// A row may be cut into parts, a warp or a block each, where there are more of these than rows.
struct RowPart {
  std::int64_t row;
  std::int32_t part;
  std::int32_t num_parts;
};

EPD_HOST_DEVICE inline RowPart PartOf(std::int64_t task, std::int32_t num_parts) {
  return {task / num_parts, static_cast<std::int32_t>(task % num_parts), num_parts};
}

// First of `count` things that belong to part p of n; p == n gives `count`.
EPD_HOST_DEVICE constexpr std::int64_t PartBegin(std::int64_t count, std::int32_t p,
                                                 std::int32_t n) {
  return count * p / n;
}

// A thread's words of a block's part of a row: `first`, and each `stride` behind it, before `end`.
struct Columns {
  std::int64_t first;
  std::int64_t end;
  std::int64_t stride;
};

EPD_HOST_DEVICE inline Columns ColumnsOf(std::int64_t words, const RowPart& part,
                                         const ThreadPosition& thread) {
  return {PartBegin(words, part.part, part.num_parts) + thread.index,
          PartBegin(words, part.part + 1, part.num_parts), thread.num_threads};
}

// What a mover's Copy does: this part of one row to every target.
struct RowCopy {
  const std::uint8_t* from;
  RowTargets to;
  std::uint64_t row_bytes;
  RowPart part;
};

// What a mover's Spread reads: this part of one row.
struct RowSource {
  const std::uint8_t* row;
  std::uint64_t row_bytes;
  RowPart part;
};

// What one block, which fills an SM, has on its way in words of 16 bytes: more than an SM's share of bandwidth times latency.
inline constexpr std::int32_t kBlockBytesInFlight = 48 << 10;

// Moves rows through registers, kWidth bytes a thread and access, with kAccesses of a thread on their way.
template <int kWidthBytes, int kAccesses = 4>
struct VectorMover {
  static constexpr int kWidth = kWidthBytes;
  static constexpr int kUnroll = kAccesses;
  // 24 warps of 85 registers.
  static constexpr std::int32_t kThreads = kBlockBytesInFlight / (16 * kUnroll);
  // Of a block that spreads a row, at most: launches have fewer (BlockShape in launch.h).
  static constexpr std::int32_t kSpreadThreads = 1024;
  using Shared = NoShared;

  // Copies a part of a row to every target.
  EPD_HOST_DEVICE static void Copy(const RowCopy& copy, const ThreadPosition& thread, Shared&) {
    if (!HasTarget(copy.to)) return;
    const RowPart& part = copy.part;
    const auto words = static_cast<std::int64_t>(copy.row_bytes / kWidth);
    const std::int64_t end = PartBegin(words, part.part + 1, part.num_parts);
    for (std::int64_t at = PartBegin(words, part.part, part.num_parts) + thread.InWarp(); at < end;
         at += kWarpThreads * kUnroll) {
      // Zeros where nothing is loaded: registers that are only written under a condition would be held from the kernel's
      // start to its end, which made a gather keep half a kilobyte of each thread in memory (bazel/fatbin.sh looks).
      Word<kWidth> word[kUnroll] = {};
      EPD_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t i = at + u * kWarpThreads;
        if (i < end) word[u] = LoadStreaming<kWidth>(copy.from + i * kWidth);
      }
      EPD_UNROLL
      for (int j = 0; j < kFanOut; ++j) {
        if (copy.to.row[j] == nullptr) continue;
        EPD_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          const std::int64_t i = at + u * kWarpThreads;
          if (i < end) StoreStreaming<kWidth>(copy.to.row[j] + i * kWidth, word[u]);
        }
      }
    }
  }

  // A block copies its part of a row to every live row of `to`, with kUnroll words of each thread on their way.
  EPD_HOST_DEVICE static void Spread(const RowSource& from, const TokenRows<std::uint8_t>& to,
                                     const ThreadPosition& thread, Shared&) {
    if (to.num_live == 0) return;
    const Columns columns =
        ColumnsOf(static_cast<std::int64_t>(from.row_bytes / kWidth), from.part, thread);
    for (std::int64_t at = columns.first; at < columns.end; at += columns.stride * kUnroll) {
      Word<kWidth> word[kUnroll] = {};
      EPD_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t i = at + columns.stride * u;
        if (i < columns.end) word[u] = LoadStreaming<kWidth>(from.row + i * kWidth);
      }
      for (std::int32_t j = 0; j < to.num_live; ++j) {
        EPD_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          const std::int64_t i = at + columns.stride * u;
          if (i < columns.end) StoreStreaming<kWidth>(to.live[j] + i * kWidth, word[u]);
        }
      }
    }
  }

  // Zeros in a part of the row at `to`.
  EPD_HOST_DEVICE static void Zero(std::uint8_t* to, std::uint64_t row_bytes, const RowPart& part,
                                   const ThreadPosition& thread) {
    const auto words = static_cast<std::int64_t>(row_bytes / kWidth);
    const std::int64_t end = PartBegin(words, part.part + 1, part.num_parts);
    for (std::int64_t i = PartBegin(words, part.part, part.num_parts) + thread.InWarp(); i < end;
         i += kWarpThreads) {
      StoreStreaming<kWidth>(to + i * kWidth, Word<kWidth>{});
    }
  }
};

}  // namespace epd::cuda
