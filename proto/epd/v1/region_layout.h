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
// Where ranks move their rows themselves on a device (client executor), the region of any call but a prepare is the rank's
// stage, which its own kernels write and its peers' kernels read:
//
//   0                        DeviceStage
//   kStageWeightsOffset      float weights: scatters [T_max, K_max], gathers [recv_capacity_per_rank]
//   ScatterOrderOffset       scatters alone: int32 order [T * K] of the plan
//   ScatterHeadOffset        scatters alone: header and experts of the plan
//   GatherRowsOffset         gathers: rows [C, row_bytes], C at most recv_capacity_per_rank
//   ScatterRowsOffset        scatters: rows [T, row_bytes]
//
// Offsets follow from the group and not from the call, since nobody knows its peers' shapes when a call is captured: T_max
// is max_tokens_per_rank, K_max the most experts of a token. stage_bytes is the whole, plan_bytes and out_bytes are 0.
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

// At the start of a stage on a device.
struct DeviceStage {
  int64_t num_rows;  // C of the gather whose rows stand here; not of a scatter.
  int64_t reserved[7];
};
static_assert(sizeof(DeviceStage) == kRegionAlignment);
inline constexpr uint64_t kStageWeightsOffset = sizeof(DeviceStage);

// `max_slots`: recv_capacity_per_rank of the group.
constexpr uint64_t GatherRowsOffset(uint64_t max_slots) {
  return kStageWeightsOffset + RoundUpToRegionAlignment(max_slots * 4);
}

// `max_routes`: T_max * K_max.
constexpr uint64_t ScatterOrderOffset(uint64_t max_routes) {
  return kStageWeightsOffset + RoundUpToRegionAlignment(max_routes * 4);
}
constexpr uint64_t ScatterHeadOffset(uint64_t max_routes) {
  return ScatterOrderOffset(max_routes) + RoundUpToRegionAlignment(max_routes * 4);
}
// `head_bytes`: PlanCountsOffset (kernels/routing_plan.h), of header and experts.
constexpr uint64_t ScatterRowsOffset(uint64_t max_routes, uint64_t head_bytes) {
  return ScatterHeadOffset(max_routes) + RoundUpToRegionAlignment(head_bytes);
}

}  // namespace epd::shm
