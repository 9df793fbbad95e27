// Calls whose rows the ranks move on a device: a rank's own kernels, in its own stream, and none of the worker's.
//
// Between announce and publish a rank copies what others need into its own stage, which its peers map read only: of a scatter
// its tokens' rows and which of them goes where, of a gather its experts' rows. Behind publish each rank reads what is for it
// straight into the caller's buffers: of a scatter row by row what its receive buffer has in each slot, of a gather the rows
// that its tokens' routes name, summed where they lie.
//
// Between a good announce and publish, and between a good publish and pulled, the stages of all ranks are
// this operation's: the worker gives them to nobody else before every rank has come to its next step or is
// dead. Outside of that no kernel touches a stage: each looks at the answer of its step first. A rank whose session has ended
// while its kernels read may have read what is not this operation's any more: the last kernel looks for that, and leaves zeros.
//
// Where things lie in a stage: proto/epd/v1/region_layout.h. Lists hold constants only.
#pragma once

#include <array>
#include <cstdint>

#include "client/cuda/stream_call.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"

namespace epd::client {

// Whether the ranks of the group move its rows.
bool RanksMove(const GroupSpec& group);

// What offsets in a stage follow from, the same for all ranks and calls of a group.
struct StageShape {
  uint64_t max_slots = 0;   // recv_capacity_per_rank
  uint64_t max_routes = 0;  // T_max * K_max
  uint64_t head_bytes = 0;  // Of a plan: PlanCountsOffset.
};
StageShape StageShapeOf(const Formation& formation);
// The stage's parts, of a region that begins at `region`.
cuda::ScatterStage ScatterStageAt(uint8_t* region, const StageShape& shape);
cuda::GatherSource GatherSourceAt(uint8_t* region, const StageShape& shape);

// Where each rank's stage is, as this rank's kernels take it. Written once: the addresses stay.
struct StreamRegionTables {
  cuda::ScatterStage* stages = nullptr;   // [R] to read
  cuda::GatherSource* sources = nullptr;  // [R]
  const int32_t** counts = nullptr;       // [R] of a prepare.
};
StreamRegionTables TakeStreamRegionTables(uint32_t num_ranks, cuda::ScratchCursor& cursor);

// Of one call site.
struct MoveScratch {
  cuda::ReportWord* report = nullptr;
  uint64_t* sums = nullptr;
  int32_t* local_experts = nullptr;
  int64_t* zones = nullptr;
  int64_t* segments = nullptr;
};
MoveScratch TakeMoveScratch(const RoutingSpec& spec, int32_t num_locals,
                            cuda::ScratchCursor& cursor);

// Where the launches of a use read and write beside its buffers.
struct RankPlaces {
  uint8_t* region = nullptr;  // The own one.
  StageShape shape;
  StreamRegionTables tables;  // On the device.
  MoveScratch scratch;
  int32_t num_locals = 0;              // This rank's experts.
  cuda::UseWords* words = nullptr;     // As StreamPlaces has them.
  const int64_t* num_slots = nullptr;  // C of the call, in memory that the device reads.
  const uint32_t* ended = nullptr;     // Not 0 once the session has ended; the same.
  cuda::ReportWord* found = nullptr;   // What was wrong with peers' stages, for the CPU; the same.
};

// Before publish; what they find wrong stands in the report.
std::array<cuda::LaunchList, 5> StageOf(const StreamCall& call, const RoutingSpec& spec,
                                        const StreamBuffers& buffers, const RankPlaces& places,
                                        const cuda::DeviceShape& device);
// Behind publish: zeros unless it was answered well, and where what was read is not of this operation.
std::array<cuda::LaunchList, 2> ReadOf(const StreamCall& call, const RoutingSpec& spec,
                                       const StreamBuffers& buffers, const RankPlaces& places,
                                       const cuda::DeviceShape& device);

}  // namespace epd::client
