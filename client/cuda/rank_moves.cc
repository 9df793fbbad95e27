#include "client/cuda/rank_moves.h"

#include <cstddef>

#include "client/cuda/stream_scratch.h"
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

LaunchList Stage(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                 const RankPlaces& places, const DeviceShape& device) {
  cuda::StageRowsArgs args;
  args.plan = static_cast<const uint8_t*>(buffers.handle_mem);
  args.spec = spec;
  args.num_tokens = static_cast<int64_t>(call.num_tokens);
  args.rows = static_cast<const uint8_t*>(buffers.rows);
  args.weights = call.has_weights ? static_cast<const float*>(buffers.weights) : nullptr;
  args.row_bytes = call.row_bytes;
  args.stage = ScatterStageAt(places.region, places.shape);
  args.gate.status = &places.words->announced;
  return cuda::StageRowsLaunches(args, device);
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

LaunchList Read(const StreamCall& call, const RoutingSpec& spec, const StreamBuffers& buffers,
                const RankPlaces& places, const DeviceShape& device) {
  cuda::ReadRowsArgs args;
  args.plan = static_cast<const uint8_t*>(buffers.handle_mem);
  args.index = {
      .spec = spec,
      .counts = reinterpret_cast<const int32_t*>(args.plan + PlanCountsOffset(spec.num_experts)),
      .rank = static_cast<int32_t>(call.rank),
      .num_locals = places.num_locals,
      .local_experts = places.scratch.local_experts,
      .zones = places.scratch.zones,
      .segments = places.scratch.segments};
  args.sources = places.tables.stages;
  args.row_bytes = call.row_bytes;
  args.recv_rows = static_cast<uint8_t*>(buffers.out_rows);
  args.recv_weights = call.has_weights ? static_cast<float*>(buffers.out_weights) : nullptr;
  args.capacity = static_cast<int64_t>(call.recv_capacity);
  args.report = places.scratch.report;
  args.gate.status = &places.words->published;
  return cuda::ReadRowsLaunches(args, device);
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

LaunchList Close(const StreamCall& call, const StreamBuffers& buffers, const RankPlaces& places,
                 const DeviceShape& device) {
  const bool scatters = Scatters(call.kind);
  cuda::CloseRowsArgs args;
  args.ended = places.ended;
  args.report = places.scratch.report;
  args.report_out = places.found;
  args.rows = static_cast<uint8_t*>(buffers.out_rows);
  args.num_rows = static_cast<int64_t>(scatters ? call.recv_capacity : call.num_tokens);
  args.row_bytes = call.row_bytes;
  if (call.has_weights) {
    args.weights = static_cast<float*>(buffers.out_weights);
    args.num_weights = scatters ? args.num_rows : args.num_rows * call.top_k;
  }
  return cuda::CloseRowsLaunches(args, device);
}

}  // namespace

bool RanksMove(const GroupSpec& group) { return group.executor == Executor::kClient; }

StageShape StageShapeOf(const Formation& formation) {
  const GroupSpec& spec = formation.spec;
  return {.max_slots = spec.recv_capacity_per_rank,
          .max_routes = spec.max_tokens_per_rank * MaxTopKOf(formation),
          .head_bytes = PlanCountsOffset(spec.num_experts)};
}

cuda::ScatterStage ScatterStageAt(uint8_t* region, const StageShape& shape) {
  uint8_t* const head = region + shm::ScatterHeadOffset(shape.max_routes);
  return {.header = reinterpret_cast<PlanHeader*>(head),
          .experts = reinterpret_cast<PlanExpert*>(head + sizeof(PlanHeader)),
          .order = reinterpret_cast<int32_t*>(region + shm::ScatterOrderOffset(shape.max_routes)),
          .weights = reinterpret_cast<float*>(region + shm::kStageWeightsOffset),
          .rows = region + shm::ScatterRowsOffset(shape.max_routes, shape.head_bytes)};
}

cuda::GatherSource GatherSourceAt(uint8_t* region, const StageShape& shape) {
  static_assert(offsetof(shm::DeviceStage, num_rows) == 0);
  return {.rows = region + shm::GatherRowsOffset(shape.max_slots),
          .weights = reinterpret_cast<const float*>(region + shm::kStageWeightsOffset),
          .num_rows = static_cast<int64_t>(shape.max_slots),
          .live = reinterpret_cast<const int64_t*>(region)};
}

StreamRegionTables TakeStreamRegionTables(uint32_t num_ranks, cuda::ScratchCursor& cursor) {
  StreamRegionTables tables;
  tables.stages = cursor.Take<cuda::ScatterStage>(num_ranks);
  tables.sources = cursor.Take<cuda::GatherSource>(num_ranks);
  tables.counts = cursor.Take<const int32_t*>(num_ranks);
  return tables;
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

std::array<LaunchList, 5> StageOf(const StreamCall& call, const RoutingSpec& spec,
                                  const StreamBuffers& buffers, const RankPlaces& places,
                                  const DeviceShape& device) {
  const LaunchList verify = Verify(call, spec, buffers, places, device);
  if (Scatters(call.kind)) return {verify, Stage(call, spec, buffers, places, device), {}, {}, {}};
  const auto copy = [&](const Block& block) {
    return CopyBlock(block, &places.words->announced, false, device);
  };
  uint8_t* const rows = places.region + shm::GatherRowsOffset(places.shape.max_slots);
  return {verify, Check(call, spec, buffers, places, device),
          copy({places.num_slots, places.region, 1, sizeof(int64_t)}),
          copy({buffers.rows, rows, call.recv_capacity, call.row_bytes, &places.words->live_rows}),
          copy(WeightsBlock(buffers.weights, places.region + shm::kStageWeightsOffset,
                            call.has_weights ? call.recv_capacity : 0))};
}

std::array<LaunchList, 2> ReadOf(const StreamCall& call, const RoutingSpec& spec,
                                 const StreamBuffers& buffers, const RankPlaces& places,
                                 const DeviceShape& device) {
  return {Scatters(call.kind) ? Read(call, spec, buffers, places, device)
                              : Gather(call, spec, buffers, places, device),
          Close(call, buffers, places, device)};
}

}  // namespace epd::client
