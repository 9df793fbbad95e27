#include "daemon/backend/nccl_ep/ep_routing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/backend/kernel_status.h"

namespace epd::nccl_ep {
namespace {

absl::Status Damaged(int32_t rank, const char* what) {
  return absl::DataLossError(
      absl::StrCat("the routing plan of rank ", rank, " ", what, "; prepare again"));
}

}  // namespace

EpRouting::EpRouting(const RoutingPlanView& view)
    : spec_(view.spec),
      header_(*static_cast<const PlanHeader*>(view.plan)),
      rank_(view.rank),
      num_tokens_(view.num_tokens),
      counts_(view.counts,
              view.counts + static_cast<int64_t>(view.spec.num_ranks) * view.spec.num_experts),
      experts_(static_cast<size_t>(view.num_tokens * view.spec.top_k), -1) {}

absl::StatusOr<EpRouting> EpRouting::FromPlan(const ViewPlanArgs& plan) {
  RoutingPlanView view;
  if (const KernelError bad = ViewRoutingPlan(plan, &view); !bad.ok()) return ToStatus(bad);
  if (const KernelError bad = CheckCounts(view.spec, view.counts); !bad.ok()) {
    return Damaged(plan.rank, "has counts that fit no group of this size");
  }
  EpRouting routing(view);
  if (absl::Status taken = routing.TakeRoutes(view); !taken.ok()) return taken;
  return routing;
}

// `order` has the routes by expert, and their slots follow from the counts; the table must say the same.
absl::Status EpRouting::TakeRoutes(const RoutingPlanView& view) {
  int64_t next = 0;
  for (int32_t e = 0; e < spec_.num_experts; ++e) {
    const int32_t owner = ExpertOwner(spec_, e);
    const int64_t first = SourceBegin(spec_, view.counts, e, rank_);
    int64_t before = -1;
    for (int32_t i = 0; i < RowsOf(spec_, view.counts, rank_, e); ++i, ++next) {
      if (next >= view.num_routes) return Damaged(rank_, "has fewer routes than it counts");
      const int64_t flat = view.order[next];
      if (flat <= before || flat >= static_cast<int64_t>(experts_.size())) {
        return Damaged(rank_, "names its routes out of order");
      }
      const PlanRoute& route = view.table[flat];
      if (route.dst_rank != owner || route.slot != first + i || experts_[flat] >= 0) {
        return Damaged(rank_, "has a slot that its counts do not give");
      }
      if (before >= 0 && before / spec_.top_k == flat / spec_.top_k) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank_, " token ", flat / spec_.top_k, " names expert ", e,
            " twice, which NCCL EP would count once; fix topk_idx, or ask for backend=cuda"));
      }
      experts_[flat] = e;
      before = flat;
    }
  }
  if (next != view.num_routes) return Damaged(rank_, "has more routes than it counts");
  return absl::OkStatus();
}

absl::Status EpRouting::Fit(const std::vector<uint64_t>& recv_capacity) const {
  for (int32_t rank = 0; rank < spec_.num_ranks; ++rank) {
    const int64_t total = TotalRecv(spec_, counts_.data(), rank);
    if (total <= static_cast<int64_t>(recv_capacity[rank])) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank, " would receive ", total, " slots, expected at most its recv_capacity of ",
        recv_capacity[rank], "; ask for more, or for a group with drop_on_overflow"));
  }
  return absl::OkStatus();
}

std::vector<int32_t> EpRouting::Land(const std::vector<uint64_t>& recv_capacity) const {
  std::vector<int32_t> landing = experts_;
  if (Fit(recv_capacity).ok()) return landing;
  // Of each expert, how many of this rank's next routes land.
  std::vector<int64_t> left(static_cast<size_t>(spec_.num_experts));
  for (int32_t e = 0; e < spec_.num_experts; ++e) {
    left[static_cast<size_t>(e)] =
        static_cast<int64_t>(recv_capacity[static_cast<size_t>(ExpertOwner(spec_, e))]) -
        SourceBegin(spec_, counts_.data(), e, rank_);
  }
  for (int32_t& expert : landing) {
    if (expert >= 0 && left[static_cast<size_t>(expert)]-- <= 0) expert = -1;
  }
  return landing;
}

std::vector<int32_t> EpRouting::ZoneSlots(uint64_t recv_capacity) const {
  std::vector<int32_t> zones;
  const ExpertRange range = OwnedExpertRange(spec_, rank_);
  for (int32_t e = range.begin; e < range.end; ++e) {
    const int64_t begin = ZoneBegin(spec_, counts_.data(), e);
    const int64_t rows = ExpertRows(spec_, counts_.data(), e, spec_.num_ranks);
    const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(recv_capacity) - begin);
    zones.push_back(static_cast<int32_t>(AlignUp(std::min(rows, left), EffectiveAlignment(spec_))));
  }
  return zones;
}

}  // namespace epd::nccl_ep
