#include "kernels/region/region_layout.h"

#include "kernels/gather_stage.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_stage.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

uint64_t HostStageBytes(bool scatters, const RegionShape& shape) {
  if (!scatters) {
    return GatherStageBytes({.num_rows = static_cast<int64_t>(shape.num_live),
                             .row_bytes = shape.row_bytes,
                             .has_weights = shape.has_weights});
  }
  return ScatterStageBytes({.num_tokens = static_cast<int64_t>(shape.num_tokens),
                            .num_routes = static_cast<int64_t>(shape.num_routes),
                            .num_ranks = static_cast<int32_t>(shape.num_ranks),
                            .row_bytes = shape.row_bytes});
}

uint64_t DeviceStageBytes(shm::Kind kind, const RegionShape& shape) {
  if (kind == shm::Kind::kPrepare) return shape.num_experts * sizeof(int32_t);
  if (!Scatters(kind))
    return shm::GatherRowsOffset(shape.num_slots) + shape.num_slots * shape.row_bytes;
  return shm::ScatterRowsOffset(shape.num_tokens * shape.top_k,
                                PlanCountsOffset(static_cast<int64_t>(shape.num_experts))) +
         shape.num_tokens * shape.row_bytes;
}

}  // namespace

RegionLayout MakeLayout(shm::Kind kind, const RegionShape& shape, RegionStorage storage) {
  const bool on_device = storage == RegionStorage::kDeviceWorker;
  const bool prepare = kind == shm::Kind::kPrepare;
  RegionLayout layout;
  if (storage == RegionStorage::kDeviceRanks) {
    layout.stage_bytes = DeviceStageBytes(kind, shape);
    layout.out_at = shm::OutOffset(layout.stage_bytes);
    return layout;
  }
  const bool has_output = on_device || storage == RegionStorage::kHostWorker;
  if (prepare) {
    layout.stage_bytes = shape.num_experts * sizeof(int32_t);
    if (has_output) layout.out_bytes = shape.num_ranks * layout.stage_bytes;
  } else {
    const bool scatters = Scatters(kind);
    const uint64_t routes = shape.has_weights ? shape.num_tokens * shape.top_k : 0;
    const uint64_t slots = shape.has_weights ? shape.num_slots : 0;
    layout.rows = scatters ? shape.num_tokens : shape.num_slots;
    layout.num_weights = scatters ? routes : slots;
    layout.weights_at = shm::OutWeightsOffset(layout.rows * shape.row_bytes);
    layout.out_rows = scatters ? shape.num_slots : shape.num_tokens;
    layout.num_out_weights = scatters ? slots : routes;
    layout.out_weights_at = shm::OutWeightsOffset(layout.out_rows * shape.row_bytes);
    if (has_output) {
      layout.plan_bytes = shape.plan_bytes;
      layout.stage_at = shm::StageOffset(layout.plan_bytes);
      layout.out_bytes = shm::OutBytes(layout.out_rows * shape.row_bytes, layout.num_out_weights);
    }
    uint64_t stage = on_device ? shm::OutBytes(layout.rows * shape.row_bytes, layout.num_weights)
                               : HostStageBytes(scatters, shape);
    if (!on_device && !scatters && shape.counted_experts != 0) {
      stage = shm::RoundUpToRegionAlignment(stage);
      layout.counts_bytes = shm::CountsBytes(shape.num_ranks, shape.counted_experts);
    }
    layout.stage_bytes = layout.stage_at + stage + layout.counts_bytes;
  }
  layout.out_at = shm::OutOffset(layout.stage_bytes);
  return layout;
}

}  // namespace epd
