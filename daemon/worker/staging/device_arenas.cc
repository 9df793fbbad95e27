#include "daemon/worker/staging/device_arenas.h"

#include <algorithm>

#include "kernels/routing_plan.h"
#include "kernels/routing_spec.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/region_layout.h"

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
  const uint64_t row_bytes = spec.hidden * (element == 0 ? kWidestElement : element);
  const uint64_t tokens = spec.max_tokens_per_rank;
  const uint64_t slots = spec.recv_capacity_per_rank;
  // A scatter stages tokens and gives slots, a gather the other way round.
  const uint64_t rows =
      shm::RoundUpToRegionAlignment(shm::OutBytes(tokens * row_bytes, tokens * top_k)) +
      shm::RoundUpToRegionAlignment(shm::OutBytes(slots * row_bytes, slots));
  const uint64_t counts =
      shm::CountsBytes(1, spec.num_experts) + shm::CountsBytes(spec.num_ranks, spec.num_experts);
  return std::max(shm::StageOffset(RoutingPlanBytes(routing)) + rows, counts);
}

}  // namespace

DeviceArenas PlanDeviceArenas(const GroupSpec& spec) {
  const uint64_t region = DevicePages(LargestOperation(spec));
  return {.arena_bytes = 2 * region, .stream_region_bytes = region};
}

}  // namespace epd
