#include "daemon/worker/staging/device_arenas.h"

#include <algorithm>

#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"
#include "kernels/routing_spec.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

// Of device memory: what drivers give at least, and map as one piece.
constexpr uint64_t kDevicePageBytes = uint64_t{2} << 20;
// Of an element of a row that says nothing of its dtype.
constexpr uint64_t kWidestElement = 8;

uint64_t DevicePages(uint64_t bytes) {
  return (bytes + kDevicePageBytes - 1) / kDevicePageBytes * kDevicePageBytes;
}

uint64_t LargestOperation(const GroupSpec& spec) {
  const uint64_t top_k = spec.top_k != 0 ? spec.top_k : std::min(spec.num_experts, limits::kTopK);
  RoutingSpec routing;
  routing.num_ranks = static_cast<int32_t>(spec.num_ranks);
  routing.num_experts = static_cast<int32_t>(spec.num_experts);
  routing.top_k = static_cast<int32_t>(top_k);
  routing.max_tokens = spec.max_tokens_per_rank;
  const auto element = static_cast<uint64_t>(SizeBytes(spec.max_token_dtype));
  const RegionShape shape = {.num_ranks = spec.num_ranks,
                             .num_experts = spec.num_experts,
                             .num_tokens = spec.max_tokens_per_rank,
                             .num_slots = spec.recv_capacity_per_rank,
                             .top_k = top_k,
                             .row_bytes = spec.hidden * (element == 0 ? kWidestElement : element),
                             .has_weights = true,
                             .plan_bytes = RoutingPlanBytes(routing)};
  const auto bytes_of = [&shape](shm::Kind kind) {
    return MakeLayout(kind, shape, RegionStorage::kDeviceWorker).bytes();
  };
  // A scatter stages tokens and gives slots, a gather the other way round. Where the ranks move their rows, all offsets are
  // those of the most that there may be.
  RegionShape most = shape;
  most.top_k = MostTopK(spec.top_k);
  return std::max(
      {bytes_of(shm::Kind::kPrepare), bytes_of(shm::Kind::kDispatch),
       bytes_of(shm::Kind::kDispatchBackward),
       MakeLayout(shm::Kind::kDispatch, most, RegionStorage::kDeviceRanks).bytes(),
       MakeLayout(shm::Kind::kDispatchBackward, most, RegionStorage::kDeviceRanks).bytes()});
}

}  // namespace

DeviceArenas PlanDeviceArenas(const GroupSpec& spec) {
  const uint64_t region = DevicePages(LargestOperation(spec));
  return {.arena_bytes = 2 * region, .stream_region_bytes = region};
}

}  // namespace epd
