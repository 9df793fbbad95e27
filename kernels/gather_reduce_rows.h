// Gather and reduce rows on the CPU: combine, and the backward of dispatch.
//
// Every rank stages its expert rows (StageGather), then every rank pulls, for each of its tokens,
// the rows of the token's routes out of all stages and adds them (PullGather). The barrier in
// between, threads and allocation: as for scatter_rows.h.
//
// Numbers. out[t] is the sum over live routes in k order, in fp32, rounded once to the data type
// (to nearest, ties to even). The sum starts from the first live value, not from +0, so a token
// with one live route gets that row's exact bits (-0 and NaN payloads included); a token with none
// gets +0. From two routes on a NaN result is the canonical quiet NaN (0x7fc00000, 0x7fc0, 0x7e00),
// because which payload survives an addition depends on the machine. Denormals are kept, whatever
// the calling thread's flush mode. Hence the same bits at every SIMD level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/data_type.h"
#include "kernels/gather_stage.h"
#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"

namespace epd {

struct StageGatherArgs {
  const RoutingPlanView* plan = nullptr;
  const void* rows = nullptr;      // [C, row_bytes]; may be null when no slot is live
  const float* weights = nullptr;  // [C], or null: only the backward of dispatch has them
  std::int64_t capacity = 0;       // C of this rank's call
  std::uint64_t row_bytes = 0;     // >= 1
  void* stage = nullptr;           // [GatherStageBytes of live rows], aligned to 64 bytes
  std::size_t stage_bytes = 0;
  // The own rank pulls from `rows` (PullGatherArgs::own_rows), so the rows it routed to itself
  // need no copy.
  bool skip_own_rows = false;
};

// Writes the stage of this rank: live rows only; padding is neither read nor written.
//   kInvalidArgument  row_bytes is 0, C negative, the stage too small or misaligned.
KernelError StageGather(const StageGatherArgs& args);

struct PullGatherArgs {
  const RoutingPlanView* plan = nullptr;
  const StageRef* sources = nullptr;  // [R] the ranks' stages, index = rank
  DataType dtype = DataType::kFloat32;
  std::uint64_t row_bytes = 0;   // H * bytes of dtype, equal on all ranks
  std::int64_t num_tokens = 0;   // T of this call; must be the plan's
  void* out = nullptr;           // [T, H] of dtype
  float* out_weights = nullptr;  // [T, K], or null; weights[slot] per route, 0 for no live route;
                                 // if set, sources have weights, and else not
  // Whether a source may hold fewer live rows than total_recv; routes past its end add nothing.
  bool drop_on_overflow = false;
  // Optional: expert rows [own_capacity, row_bytes] and weights [own_capacity] of this rank itself.
  // Then sources[rank] is not read at all and may be {}. Null with {} is right for own_capacity 0.
  const void* own_rows = nullptr;
  const float* own_weights = nullptr;
  std::int64_t own_capacity = 0;
};

// Writes every byte of both outputs. Reads live slots only: NaN in padding or tail reaches nothing.
//   kInvalidArgument  T is not the plan's; row_bytes not a multiple of the element size; unknown
//                     dtype; null pointers; a route of the plan is out of range (kPlanRoute).
//   kDataLoss         a stage is truncated or not of this plan; `rank` is the source.
// On error both outputs are zeros in full.
KernelError PullGather(const PullGatherArgs& args);

}  // namespace epd
