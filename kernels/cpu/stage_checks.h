// Checks of what peers left in their stages, and the sources that passed them.
#pragma once

#include <cstdint>

#include "kernels/gather_reduce_rows.h"
#include "kernels/scatter_rows.h"

namespace epd {

// A rank's scatter stage after its header was copied and checked: every route of [next, end) lies
// in the stage, and so does every row below num_rows.
struct ScatterSource {
  const std::uint8_t* rows = nullptr;    // of the slice: [num_rows], a row of the stage apart
  const std::uint8_t* routes = nullptr;  // StageRoute[num_routes]; 4-byte aligned
  std::uint32_t num_rows = 0;
  std::uint32_t next = 0;  // first route for this rank that is not yet pulled
};

// A rank's gather stage after its header was copied and checked.
struct GatherSource {
  const std::uint8_t* rows = nullptr;  // [num_rows, row_bytes]
  const float* weights = nullptr;      // [num_rows], or null
  std::int64_t num_rows = 0;           // live
};

// Fills `source` from sources[rank] of `args`.
//   kDataLoss  with rank: any field that is not what plan and call say.
KernelError CheckScatterStage(const PullScatterArgs& args, std::int32_t rank,
                              ScatterSource* source);

// The same for gather. `demand`: TotalRecv of the rank.
KernelError CheckGatherStage(const PullGatherArgs& args, std::int32_t rank, std::int64_t demand,
                             GatherSource* source);

}  // namespace epd
