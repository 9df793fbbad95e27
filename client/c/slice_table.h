// Which rows of a ragged all-to-all go where: what each rank says, and whether it fits what the others say. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/c/epd_client.h"
#include "client/c/status.h"
#include "kernels/scatter_rows.h"
#include "kernels/slice_stage.h"

namespace epd::client {

inline constexpr uint32_t kMaxSlicesPerRank = 65536;

// One rank's call.
struct RankSlices {
  SliceStageHeader header = {};
  std::vector<StageSlice> slices;

  // Slice `number` of those for, or from, `rank`.
  const StageSlice& at(uint64_t rank, uint64_t number) const {
    return slices[rank * header.slices_per_rank + number];
  }
  uint64_t rows_offset() const { return SliceRowsOffset(slices.size()); }
  uint64_t stage_bytes() const { return rows_offset() + header.staged_rows * header.row_bytes; }
};

// Rows of the operand that are staged together.
struct StagedRun {
  int64_t first = 0;
  int64_t end = 0;
  int64_t staged_row = 0;
};

// Takes this rank's call, and plans its stage: rows that several ranks get are staged once, the own ones not at all.
//   INVALID_ARGUMENT  a pointer or a size is missing; a negative size or offset; a slice that leaves the operand
Status ReadSlices(const epd_ragged_args& args, uint32_t num_ranks, RankSlices* own,
                  std::vector<StagedRun>* runs);

// Takes a peer's call out of its stage.
//   DATA_LOSS  it holds none
Status LoadSlices(const StageRef& stage, uint32_t rank, uint32_t num_ranks, RankSlices* peer);

// Compares the calls of all ranks; each rank does, and comes to the same.
//   INVALID_ARGUMENT  other numbers of slices or sizes of rows; a recv_size that is not the sender's send_size; a slice that
//                     leaves the receiver's output; slices that overlap there, unless they may. Names the ranks and the entries.
Status CheckSlices(std::span<const RankSlices> all, bool may_overlap);

}  // namespace epd::client
