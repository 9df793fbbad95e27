#include "daemon/rpc/node_api/memory_plan.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/kernel_error.h"
#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/eager_layout.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd {
namespace {

constexpr int64_t kPageBytes = 4096;

uint64_t Pages(uint64_t bytes) {
  return static_cast<uint64_t>(AlignUp(static_cast<int64_t>(bytes), kPageBytes));
}

absl::Status CheckRange(absl::string_view field, uint64_t got, uint64_t least, uint64_t most) {
  if (least <= got && got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", got, ", expected ", least, " to ", most));
}

// What a group is held against when it is made (Validate), so that no size below overflows.
absl::Status Check(const GroupShape& shape, const RoutingSpec& spec) {
  const absl::Status checks[] = {
      CheckRange("max_tokens_per_rank", shape.max_tokens_per_rank, 1, limits::kSlots),
      CheckRange("recv_capacity_per_rank", shape.recv_capacity_per_rank, 1, limits::kSlots),
      CheckRange("hidden", shape.hidden, 1, limits::kHidden),
      CheckRange("element_bytes", shape.element_bytes, 1, limits::kMovedElementBytes),
  };
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  const KernelError bad = CheckRoutingSpec(spec);
  return bad.ok() ? absl::OkStatus() : absl::InvalidArgumentError(ToString(bad));
}

RoutingSpec ToRoutingSpec(const GroupShape& shape) {
  RoutingSpec spec;
  spec.num_ranks = static_cast<int32_t>(shape.num_ranks);
  spec.num_experts = static_cast<int32_t>(shape.num_experts);
  const uint32_t largest = std::min<uint32_t>(shape.num_experts, kMaxTopK);
  spec.top_k = static_cast<int32_t>(shape.top_k == 0 ? largest : shape.top_k);
  spec.alignment = static_cast<int32_t>(shape.alignment);
  spec.max_tokens = shape.max_tokens_per_rank;
  return spec;
}

uint64_t BytesOf(shm::Kind kind, const GroupShape& shape, const RoutingSpec& spec,
                 uint64_t plan_bytes) {
  const bool scatters = Scatters(kind);
  const uint64_t element =
      scatters ? shape.element_bytes
               : std::min<uint64_t>(shape.element_bytes, limits::kSummedElementBytes);
  const auto top_k = static_cast<uint64_t>(spec.top_k);
  const RegionShape region = {
      .num_ranks = shape.num_ranks,
      .num_experts = shape.num_experts,
      .num_tokens = shape.max_tokens_per_rank,
      .num_slots = shape.recv_capacity_per_rank,
      .top_k = top_k,
      .row_bytes = shape.hidden * element,
      .has_weights = kind == shm::Kind::kDispatch || kind == shm::Kind::kDispatchBackward,
      .plan_bytes = plan_bytes,
      .num_routes = shape.max_tokens_per_rank * top_k,
      .num_live = shape.recv_capacity_per_rank};
  return Pages(
      MakeLayout(kind, region, MakeStorage(/*on_device=*/false, shape.worker_executor)).bytes());
}

// Staging::WantEagerBuffers takes as much of a pool that nobody uses, for calls that stage so much each.
uint64_t EagerBytes(const GroupShape& shape, uint64_t pool_bytes,
                    std::initializer_list<uint64_t> stages) {
  if (shape.worker_executor || shape.num_ranks > limits::kEagerRanks) return 0;
  constexpr shm::EagerOptions kOptions;
  uint64_t num_eager_buffers = 0;
  for (const uint64_t stage_bytes : stages) {
    const shm::EagerDemand demand = {
        .num_arenas = shape.num_ranks, .stage_bytes = stage_bytes, .several = true};
    num_eager_buffers =
        std::max(num_eager_buffers,
                 shm::NumEagerBuffers(kOptions, demand, pool_bytes / kOptions.pool_share));
  }
  return num_eager_buffers * kOptions.buffer_bytes;
}

// A shape at all its limits has more bytes than 64 bits can say: then the most that they can.
uint64_t OfAllRanks(uint64_t num_ranks, uint64_t bytes) {
  uint64_t product;
  return __builtin_mul_overflow(num_ranks, bytes, &product) ? UINT64_MAX : product;
}

}  // namespace

absl::StatusOr<v1::PlanMemoryResponse> PlanGroupMemory(const GroupShape& shape,
                                                       uint64_t pool_bytes) {
  const RoutingSpec spec = ToRoutingSpec(shape);
  if (absl::Status bad = Check(shape, spec); !bad.ok()) return bad;
  v1::PlanMemoryResponse plan;
  plan.set_handle_mem_bytes(RoutingPlanBytes(spec));
  const auto bytes_of = [&](shm::Kind kind) {
    return BytesOf(kind, shape, spec, plan.handle_mem_bytes());
  };
  plan.set_prepare_bytes_per_rank(bytes_of(shm::Kind::kPrepare));
  plan.set_dispatch_bytes_per_rank(bytes_of(shm::Kind::kDispatch));
  plan.set_combine_bytes_per_rank(bytes_of(shm::Kind::kCombine));
  plan.set_dispatch_backward_bytes_per_rank(bytes_of(shm::Kind::kDispatchBackward));
  plan.set_combine_backward_bytes_per_rank(bytes_of(shm::Kind::kCombineBackward));
  plan.set_eager_bytes_per_rank(EagerBytes(
      shape, pool_bytes,
      {plan.prepare_bytes_per_rank(), plan.dispatch_bytes_per_rank(), plan.combine_bytes_per_rank(),
       plan.dispatch_backward_bytes_per_rank(), plan.combine_backward_bytes_per_rank()}));
  return plan;
}

void JudgePlan(uint32_t num_ranks, uint64_t pool_bytes, uint64_t committed_bytes,
               v1::PlanMemoryResponse& plan) {
  std::vector<uint64_t> kinds = {plan.dispatch_bytes_per_rank(), plan.combine_bytes_per_rank(),
                                 plan.dispatch_backward_bytes_per_rank(),
                                 plan.combine_backward_bytes_per_rank()};
  absl::c_sort(kinds, std::greater<>());
  const uint64_t total =
      plan.eager_bytes_per_rank() + plan.prepare_bytes_per_rank() + kinds[0] + kinds[1];
  const uint64_t largest = OfAllRanks(num_ranks, kinds[0]);
  const uint64_t node = OfAllRanks(num_ranks, total);
  plan.set_total_bytes_per_rank(total);
  plan.set_total_bytes_per_node(node);
  plan.set_pool_bytes(pool_bytes);
  plan.set_pool_committed_bytes(committed_bytes);
  plan.set_fits(largest <= pool_bytes);
  const std::string pool =
      absl::StrCat("the staging of this node, ", pool_bytes, " bytes (staging_bytes)");
  if (largest > pool_bytes) {
    plan.set_verdict(absl::StrCat("does not fit: one operation of all ranks takes ", largest,
                                  " bytes of ", pool, "; raise staging_bytes to ", node,
                                  " or lower the group's limits"));
  } else if (node > pool_bytes) {
    plan.set_verdict(absl::StrCat("fits one operation at a time, which wait for each other: ", node,
                                  " bytes would be used of ", pool));
  } else if (node > pool_bytes - std::min(committed_bytes, pool_bytes)) {
    plan.set_verdict(absl::StrCat("fits while other groups rest: they have ", committed_bytes,
                                  " of ", pool, ", and operations of all take turns"));
  } else {
    plan.set_verdict(absl::StrCat("fits beside what is there, in ", pool));
  }
}

}  // namespace epd
