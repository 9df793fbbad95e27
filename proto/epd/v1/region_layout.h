// Where things lie in one rank's region of an operation, a range of the rank's arena.
//
//   0                         plan copy [plan_bytes]: the used part of the rank's routing plan (StagePlan). Worker
//                             executor, all kinds but prepare; else plan_bytes is 0
//   StageOffset(plan_bytes)   the stage: kernels/scatter_stage.h, kernels/gather_stage.h, or prepare's counts [E]
//   out_offset (in the reply) the output, worker executor only. prepare: counts [R, E]. Else rows [N, row_bytes], then
//                             at OutWeightsOffset float weights: scatters N = C, weights [C]; gathers N = T,
//                             weights [T, K]; no weights where has_weights is 0
//
// In a group on several nodes a gather's stage ends with counts of its plan, int32, in its last CountsBytes, in which the
// worker finds which rows which node needs: [R, L] of the rank's own experts, L may be 0. A client that a daemon has not
// told that it takes these (features::kTakesCountsOfOwnExperts) brings [R, E]; their bytes tell them apart.
//
// Where arenas are device memory (backend cuda) nobody reads a stage but kernels that know the plan, so that all sizes
// follow from the call's shapes and no byte from the routes: the plan copy is the whole handle_mem
// (RoutingPlanBytes), and the stage is laid out as an output is: rows [N, row_bytes], then at OutWeightsOffset float
// weights. Scatters: N = T, weights [T, K]; gathers: N = C, weights [C]. prepare: counts [E]. OutBytes tells its size.
//
// With the client executor, on a device, only prepare's counts go through the worker. The region of any other call is
// the rank's slots, which peers write (scatters) or read (gathers), each in its own kernels:
//
//   0                         DeviceSlots
//   kSlotWeightsOffset        float weights [recv_capacity_per_rank]
//   SlotRowsOffset            rows [C, row_bytes], C at most recv_capacity_per_rank
//
// Offsets follow from the group and not from the call, since nobody knows its peers' shapes when a call is captured;
// stage_bytes is SlotsBytes, plan_bytes and out_bytes are 0.
//
// SlotRequest::stage_bytes counts everything up to the end of the stage, the plan copy included; out_bytes the output.
// Offsets in the region are multiples of 64. What a call of given shapes needs in all is MakeLayout's to say
// (kernels/region/region_layout.h).
#pragma once

#include <cstdint>

namespace epd::shm {

inline constexpr uint64_t kRegionAlignment = 64;
constexpr uint64_t RoundUpToRegionAlignment(uint64_t bytes) {
  return (bytes + kRegionAlignment - 1) & ~(kRegionAlignment - 1);
}

// First byte of the stage, from the start of the region.
constexpr uint64_t StageOffset(uint64_t plan_bytes) { return RoundUpToRegionAlignment(plan_bytes); }

// First byte of the output, from the start of the region. `stage_bytes`: SlotRequest's.
constexpr uint64_t OutOffset(uint64_t stage_bytes) { return RoundUpToRegionAlignment(stage_bytes); }

// First byte of the weights, from the start of the output.
constexpr uint64_t OutWeightsOffset(uint64_t rows_bytes) {
  return RoundUpToRegionAlignment(rows_bytes);
}

// SlotRequest::out_bytes of a call whose output has `rows_bytes` of rows and `num_weights` weights.
constexpr uint64_t OutBytes(uint64_t rows_bytes, uint64_t num_weights) {
  return num_weights == 0 ? rows_bytes : OutWeightsOffset(rows_bytes) + num_weights * 4;
}

// Of the counts behind a gather's stage.
constexpr uint64_t CountsBytes(uint64_t num_ranks, uint64_t num_experts) {
  return RoundUpToRegionAlignment(num_ranks * num_experts * 4);
}

// The client executor's slots on a device. Written by the region's rank, and by nobody in a scatter.
struct DeviceSlots {
  int64_t num_slots;  // C of the gather whose rows stand here.
  int64_t reserved[7];
};
static_assert(sizeof(DeviceSlots) == kRegionAlignment);
inline constexpr uint64_t kSlotWeightsOffset = sizeof(DeviceSlots);

constexpr uint64_t SlotRowsOffset(uint64_t max_slots) {
  return kSlotWeightsOffset + RoundUpToRegionAlignment(max_slots * 4);
}

// `max_slots`: recv_capacity_per_rank of the group.
constexpr uint64_t SlotsBytes(uint64_t max_slots, uint64_t row_bytes) {
  return SlotRowsOffset(max_slots) + max_slots * row_bytes;
}

}  // namespace epd::shm
