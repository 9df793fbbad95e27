// The client executor on a device: a rank's own kernels move its rows, in its own stream.
//
// Scatters push: between announce and publish each route's row goes straight out of the caller's buffer into
// its slot of the receiver's region; behind publish the receiver copies its region out and clears padding and
// tail. Gathers are pulled: expert rows are copied into the own region before publish, and behind it each rank
// sums them out of its peers' regions into the caller's buffer. (On one device either direction costs the same;
// these two need the fewest bytes and no kernel that the worker executor has not.)
//
// Between a good announce and publish, and between a good publish and pulled, the regions of all ranks are
// this operation's: the worker gives them to nobody else before every rank has come to its next step or is
// dead. Outside of that no kernel touches a region: each looks at the answer of its step first.
//
// Region layout: proto/epd/v1/region_layout.h. Lists hold constants only.
#pragma once

#include <array>
#include <cstdint>

#include "client/cuda/stream_call.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"

namespace epd::client {

// Whether the call's rows are this rank's to move. The counts of a prepare go through the worker.
bool MovesOwnRows(const StreamCall& call, const GroupSpec& group);

// Where each rank's region is, as this rank's kernels take it. Written once: the addresses stay.
struct StreamRegionTables {
  cuda::RecvTarget* targets = nullptr;       // [R]
  cuda::RecvTarget* bare_targets = nullptr;  // [R] of rows without weights.
  cuda::GatherSource* sources = nullptr;     // [R]
};
StreamRegionTables TakeStreamRegionTables(uint32_t num_ranks, cuda::ScratchCursor& cursor);
// `tables` in host memory; `region`: the device's address of the rank's region.
void FillStreamRegion(const StreamRegionTables& tables, uint32_t rank, uint8_t* region,
                      uint64_t max_slots);

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
  StreamRegionTables tables;  // On the device.
  MoveScratch scratch;
  uint64_t max_slots = 0;              // recv_capacity_per_rank
  int32_t num_locals = 0;              // This rank's experts.
  cuda::UseWords* words = nullptr;     // As StreamPlaces has them.
  const int64_t* num_slots = nullptr;  // C of the call, in memory that the device reads.
};

// Before publish; what they find wrong stands in the report.
std::array<cuda::LaunchList, 5> PushOf(const StreamCall& call, const RoutingSpec& spec,
                                       const StreamBuffers& buffers, const RankPlaces& places,
                                       const cuda::DeviceShape& device);
// After publish: zeros unless it was answered well.
std::array<cuda::LaunchList, 3> TakeOf(const StreamCall& call, const RoutingSpec& spec,
                                       const StreamBuffers& buffers, const RankPlaces& places,
                                       const cuda::DeviceShape& device);

}  // namespace epd::client
