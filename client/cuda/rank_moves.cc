#include "client/cuda/rank_moves.h"

#include <cstddef>

#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd::client {
namespace {

using cuda::DeviceShape;
using cuda::LaunchList;

const PlanRoute* TableOf(const StreamBuffers& buffers, const RoutingSpec& spec) {
  return reinterpret_cast<const PlanRoute*>(static_cast<const uint8_t*>(buffers.handle_mem) +
                                            PlanTableOffset(spec.num_ranks, spec.num_experts));
}

LaunchList Verify(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                  const RankPlaces& places, const DeviceShape& device) {
  cuda::VerifyPlan::Args args;
  args.plan = static_cast<const uint8_t*>(buffers.handle_mem);
  args.spec = spec;
  args.rank = static_cast<int32_t>(call.rank);
  args.ids_at = &places.words->ids;
  args.num_tokens = static_cast<int64_t>(call.num_tokens);
  args.report = places.scratch.report;
  args.status = &places.words->announced;
  return cuda::VerifyPlanLaunches(args, places.scratch.sums, device);
}

LaunchList Push(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                const RankPlaces& places, const DeviceShape& device) {
  cuda::PushDirectArgs args;
  args.table = TableOf(buffers, spec);
  args.rows = static_cast<const uint8_t*>(buffers.rows);
  args.weights = call.has_weights ? static_cast<const float*>(buffers.weights) : nullptr;
  args.targets = call.has_weights ? places.tables.targets : places.tables.bare_targets;
  args.num_tokens = static_cast<int64_t>(call.num_tokens);
  args.row_bytes = call.row_bytes;
  args.top_k = spec.top_k;
  args.num_ranks = spec.num_ranks;
  args.report = places.scratch.report;
  args.gate = {&places.words->announced, places.scratch.report};
  return cuda::PushDirectLaunches(args, device);
}

LaunchList Check(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                 const RankPlaces& places, const DeviceShape& device) {
  cuda::CheckTable::Args args;
  args.table = TableOf(buffers, spec);
  args.num_routes = static_cast<int64_t>(call.num_tokens) * spec.top_k;
  args.num_ranks = spec.num_ranks;
  args.report = places.scratch.report;
  args.status = &places.words->announced;
  return cuda::CheckTableLaunches(args, device);
}

// Padding and tail of the output; all of it after a failure.
LaunchList ClearRest(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                     const RankPlaces& places, const DeviceShape& device) {
  cuda::LandRowsArgs args;
  args.index = {
      .spec = spec,
      .counts = reinterpret_cast<const int32_t*>(static_cast<const uint8_t*>(buffers.handle_mem) +
                                                 PlanCountsOffset(spec.num_experts)),
      .rank = static_cast<int32_t>(call.rank),
      .num_locals = places.num_locals,
      .local_experts = places.scratch.local_experts,
      .zones = places.scratch.zones,
      .segments = places.scratch.segments};
  args.row_bytes = call.row_bytes;
  args.recv_rows = static_cast<uint8_t*>(buffers.out_rows);
  args.recv_weights = call.has_weights ? static_cast<float*>(buffers.out_weights) : nullptr;
  args.capacity = static_cast<int64_t>(call.recv_capacity);
  args.report = places.scratch.report;
  args.gate = {&places.words->published, nullptr};
  return cuda::ClearPaddingLaunches(args, device);
}

LaunchList Gather(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                  const RankPlaces& places, const DeviceShape& device) {
  cuda::GatherReduceArgs args;
  args.table = TableOf(buffers, spec);
  args.sources = places.tables.sources;
  args.out = static_cast<uint8_t*>(buffers.out_rows);
  args.out_weights = call.has_weights ? static_cast<float*>(buffers.out_weights) : nullptr;
  args.num_tokens = static_cast<int64_t>(call.num_tokens);
  args.row_bytes = call.row_bytes;
  args.top_k = spec.top_k;
  args.num_ranks = spec.num_ranks;
  args.gate.status = &places.words->published;
  return cuda::GatherReduceLaunches(args, static_cast<DataType>(call.dtype), nullptr, device);
}

}  // namespace

bool MovesOwnRows(const StreamCall& call, const GroupSpec& group) {
  return group.executor == Executor::kClient && call.kind != shm::Kind::kPrepare;
}

StreamRegionTables TakeStreamRegionTables(uint32_t num_ranks, cuda::ScratchCursor& cursor) {
  StreamRegionTables tables;
  tables.targets = cursor.Take<cuda::RecvTarget>(num_ranks);
  tables.bare_targets = cursor.Take<cuda::RecvTarget>(num_ranks);
  tables.sources = cursor.Take<cuda::GatherSource>(num_ranks);
  return tables;
}

void FillStreamRegion(const StreamRegionTables& tables, uint32_t rank, uint8_t* region,
                      uint64_t max_slots) {
  uint8_t* const rows = region + shm::SlotRowsOffset(max_slots);
  auto* const weights = reinterpret_cast<float*>(region + shm::kSlotWeightsOffset);
  const auto slots = static_cast<int64_t>(max_slots);
  tables.targets[rank] = {rows, weights, slots};
  tables.bare_targets[rank] = {rows, nullptr, slots};
  static_assert(offsetof(shm::DeviceSlots, num_slots) == 0);
  tables.sources[rank] = {rows, weights, slots, reinterpret_cast<const int64_t*>(region)};
}

MoveScratch TakeMoveScratch(const RoutingSpec& spec, int32_t num_locals,
                            cuda::ScratchCursor& cursor) {
  MoveScratch scratch;
  scratch.report = cursor.Take<cuda::ReportWord>(1);
  scratch.sums = cursor.Take<uint64_t>(cuda::PlanSumUnits(spec));
  scratch.local_experts = cursor.Take<int32_t>(num_locals);
  scratch.zones = cursor.Take<int64_t>(int64_t{num_locals} + 1);
  scratch.segments = cursor.Take<int64_t>(int64_t{num_locals} * spec.num_ranks);
  return scratch;
}

std::array<LaunchList, 5> PushOf(const StreamCall& call, const RoutingSpec& spec,
                                 const StreamBuffers& buffers, const RankPlaces& places,
                                 const DeviceShape& device) {
  const LaunchList verify = Verify(call, spec, buffers, places, device);
  if (Scatters(call.kind)) return {verify, Push(call, spec, buffers, places, device), {}, {}, {}};
  const auto copy = [&](const Block& block) {
    return CopyBlock(block, &places.words->announced, false, device);
  };
  uint8_t* const rows = places.region + shm::SlotRowsOffset(places.max_slots);
  return {verify, Check(call, spec, buffers, places, device),
          copy({places.num_slots, places.region, 1, sizeof(int64_t)}),
          copy({buffers.rows, rows, call.recv_capacity, call.row_bytes, &places.words->live_rows}),
          copy(WeightsBlock(buffers.weights, places.region + shm::kSlotWeightsOffset,
                            call.has_weights ? call.recv_capacity : 0))};
}

std::array<LaunchList, 3> TakeOf(const StreamCall& call, const RoutingSpec& spec,
                                 const StreamBuffers& buffers, const RankPlaces& places,
                                 const DeviceShape& device) {
  if (!Scatters(call.kind)) return {Gather(call, spec, buffers, places, device), {}, {}};
  const auto copy = [&](const Block& block) {
    return CopyBlock(block, &places.words->published, false, device);
  };
  const uint8_t* const rows = places.region + shm::SlotRowsOffset(places.max_slots);
  return {
      copy({rows, buffers.out_rows, call.recv_capacity, call.row_bytes, &places.words->live_rows}),
      copy(WeightsBlock(places.region + shm::kSlotWeightsOffset, buffers.out_weights,
                        call.has_weights ? call.recv_capacity : 0)),
      ClearRest(call, spec, buffers, places, device)};
}

}  // namespace epd::client
