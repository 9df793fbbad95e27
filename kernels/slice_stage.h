// What a sender leaves in its staging region for a ragged all-to-all: the byte layout.
//
//   SliceStageHeader
//   StageSlice slices[R * S]   by destination rank, then number
//   rows                       those that any other rank gets, each once, at SliceRowsOffset
//
// Every rank reads all of every header, so that what does not fit together is the same error on all of them. Readers treat
// every byte as hostile: another process may write it while it is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/scatter_stage.h"

namespace epd {

inline constexpr std::uint64_t kSliceStageMagic = 0x43494C5344504531;  // "1EPDSLIC" in memory

struct SliceStageHeader {
  std::uint64_t magic;
  std::uint32_t num_ranks;        // R
  std::uint32_t slices_per_rank;  // S
  std::uint64_t row_bytes;
  std::uint64_t operand_rows;
  std::uint64_t output_rows;
  std::uint64_t staged_rows;
};
static_assert(sizeof(SliceStageHeader) == 48);

// Slice i of rank r's call is number i % S of those for rank i / S. Sizes and offsets count rows. Where a slice is empty the
// offsets mean nothing.
struct StageSlice {
  std::int64_t input_offset;
  std::int64_t send_size;
  std::int64_t output_offset;  // In the receiver's output.
  std::int64_t recv_size;      // Of slice i % S from rank i / S, as rank r expects it.
  std::int64_t staged_row;     // Of the stage; where the slice is the sender's own, not staged: 0.
};
static_assert(sizeof(StageSlice) == 40);

inline std::uint64_t SliceRowsOffset(std::uint64_t num_slices) {
  const std::uint64_t end = sizeof(SliceStageHeader) + num_slices * sizeof(StageSlice);
  return (end + kStageRowsAlignment - 1) / kStageRowsAlignment * kStageRowsAlignment;
}

}  // namespace epd
