// Scatter rows on the CPU: dispatch, and the backward of combine.
//
// Every rank stages its rows once (StageScatter), then every rank pulls what is meant for it out
// of all stages (PullScatter). In between lies the caller's barrier: a stage must be complete, and
// made visible with release/acquire, before anybody pulls from it. The launchers allocate nothing,
// wait for nothing and read no environment; any number may run in parallel on different arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_stage.h"

namespace epd {

// Where rows stand in those of a stage that carries several arrays side by side.
struct StageRowSlice {
  std::uint64_t offset = 0;    // bytes
  std::uint64_t of_bytes = 0;  // of a whole row of the stage; 0: the rows are these
  bool skip_weights = false;   // weights are pulled with another slice
};
inline std::uint64_t StageRowBytes(const StageRowSlice& slice, std::uint64_t row_bytes) {
  return slice.of_bytes != 0 ? slice.of_bytes : row_bytes;
}

// A mapped staging region of one rank, readable for `bytes`.
struct StageRef {
  const void* base = nullptr;
  std::size_t bytes = 0;
};

struct StageScatterArgs {
  const RoutingPlanView* plan = nullptr;
  const void* rows = nullptr;      // [T, row_bytes], T the plan's; may be null when T is 0
  const float* weights = nullptr;  // [T, K], or null: combine backward has none
  std::int64_t num_tokens = 0;     // T of this call; must be the plan's
  std::uint64_t row_bytes = 0;     // >= 1, any value
  void* stage = nullptr;           // [ScatterStageBytes], aligned to 64 bytes
  std::size_t stage_bytes = 0;
  // The own rank pulls from `rows` (PullScatterArgs::own_rows), so rows that no other rank gets
  // need no copy.
  bool skip_own_rows = false;
  StageRowSlice slice = {};
};

// Writes the stage of this rank.
//   kInvalidArgument  T is not the plan's, row_bytes is 0, the slice does not lie in a row, the stage is too small or
//                     misaligned, a route of the plan is out of range.
KernelError StageScatter(const StageScatterArgs& args);
// Another slice of the rows, and nothing else. The same errors.
KernelError StageScatterSlice(const StageScatterArgs& args);

struct PullScatterArgs {
  const RoutingPlanView* plan = nullptr;
  const StageRef* sources = nullptr;  // [R] the ranks' stages, index = rank
  std::uint64_t row_bytes = 0;        // equal on all ranks
  std::int64_t capacity = 0;          // C, slots of the outputs
  void* recv_rows = nullptr;          // [C, row_bytes]
  float* recv_weights = nullptr;      // [C], or null; if set, sources have weights, and else not
  bool drop_on_overflow = false;
  // Optional: rows [T, row_bytes] and weights [T, K] of this rank itself. Then sources[rank] is not
  // read at all and may be {}. Null with {} is right for an empty tensor.
  const void* own_rows = nullptr;
  const float* own_weights = nullptr;
  // What of the stages' rows is pulled.
  StageRowSlice slice = {};
};

// Writes every byte of both outputs: live slots, and zeros in padding and tail. Slots at or after
// C are dropped if drops are allowed.
//   kInvalidArgument    row_bytes 0, C negative, null pointers, a slice that does not lie in a row.
//   kResourceExhausted  kOverflow: total_recv over C and no drops.
//   kDataLoss           a stage is truncated, not of this plan, or not what the counts say: the
//                       fault names the check, `rank` the source. A source must deliver exactly
//                       the rows, in exactly the slots, that the plan's counts give it.
// On error both outputs are zeros in full.
KernelError PullScatter(const PullScatterArgs& args);

}  // namespace epd
