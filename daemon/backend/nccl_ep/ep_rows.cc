#include "daemon/backend/nccl_ep/ep_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/backend/move_routing.h"
#include "daemon/backend/nccl_ep/ep_session.h"
#include "daemon/core/nccl_ep_limits.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd::nccl_ep {
namespace {

constexpr uint32_t kBfloat16Rows = 2;  // MoveJob::dtype.

absl::Status Beyond(const char* what, uint64_t got, uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", got, ", but this group was made on NCCL EP for ", limit,
                   "; fix the call, or form the group with backend=cuda"));
}

bool Same(const PlanHeader& a, const PlanHeader& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

EpRows::EpRows(const MoveGroup& group, const MoveJob& job, const GroupSpec& library, EpKnown& known)
    : group_(group),
      job_(job),
      library_(library),
      known_(known),
      slots_(LibrarySlots(library)),
      scatters_(shm::Scatters(job.kind)),
      spec_(RoutingOf(group, job)) {}

absl::StatusOr<std::unique_ptr<cuda::MemberRows>> EpRows::Create(const MoveGroup& group,
                                                                 const MoveJob& job,
                                                                 const GroupSpec& library, int self,
                                                                 EpKnown& known) {
  std::unique_ptr<EpRows> rows(new EpRows(group, job, library, known));
  if (absl::Status checked = rows->Check(self); !checked.ok()) return checked;
  rows->Arrange();
  const auto* routing = known.routings.Find(rows->plan());
  if (routing != nullptr && rows->Fits((*routing)->header())) rows->routing_ = *routing;
  return rows;
}

// A plan's id is one prepare's alone, whatever arenas the tenant has by now.
cuda::KnownPlan EpRows::plan() const {
  return {.group_id = group_.group_id, .epoch = group_.epoch, .plan_id = job_.plan_id};
}

absl::Status EpRows::Check(int self) {
  // The sizes of regions are those of any operation on a device.
  const absl::StatusOr<cuda::RowMoves> fits = cuda::RowMoves::Create(group_, job_, &no_traffic_);
  if (!fits.ok()) return fits.status();
  const auto found = std::find(group_.member_of_rank.begin(), group_.member_of_rank.end(), self);
  if (found == group_.member_of_rank.end()) return absl::InternalError("a member without a rank");
  rank_ = static_cast<size_t>(found - group_.member_of_rank.begin());
  if (job_.dtype != kBfloat16Rows) return Beyond("dtype", job_.dtype, kBfloat16Rows);
  if (job_.row_bytes != RowBytes(library_)) {
    return Beyond("row_bytes", job_.row_bytes, RowBytes(library_));
  }
  if (job_.top_k > library_.top_k) return Beyond("top_k", job_.top_k, library_.top_k);
  if (EffectiveAlignment(spec_) > kNcclEpMaxAlignment) {
    return Beyond("alignment", job_.alignment, kNcclEpMaxAlignment);
  }
  if (part().recv_capacity > library_.recv_capacity_per_rank) {
    return Beyond("recv_capacity", part().recv_capacity, library_.recv_capacity_per_rank);
  }
  return absl::OkStatus();
}

void EpRows::Arrange() {
  const auto tokens = static_cast<int64_t>(part().num_tokens);
  plan_bytes_ = std::min<uint64_t>(
      RoutingPlanBytes(spec_),
      AlignUp(static_cast<int64_t>(PlanUsedBytes(spec_, tokens, tokens * spec_.top_k)), 8));
  constexpr uint64_t kUnit = 256;
  uint64_t used = 0;
  const auto take = [&used](uint64_t bytes) {
    const uint64_t at = used;
    used += (bytes + kUnit - 1) / kUnit * kUnit;
    return at;
  };
  const uint64_t routes = part().num_tokens * job_.top_k;
  tokens_.assign(job_.parts.size(), static_cast<uint32_t>(part().num_tokens));
  layout_.plan = take(sizeof(PlanHeader));
  layout_.topk = take(routes * sizeof(int32_t));
  layout_.zones = take(num_locals() * sizeof(int32_t));
  layout_.total = take(sizeof(int32_t));
  room_.host_bytes = used;
  if (job_.kind == shm::Kind::kDispatch) {
    layout_.weights = take(routes * sizeof(float));
    layout_.landing_weights = take(slots_ * sizeof(float));
  }
  if (lands_beside()) layout_.landing = take(slots_ * job_.row_bytes);
  room_.device_bytes = used;
}

bool EpRows::Fits(const PlanHeader& plan) const {
  return plan.num_tokens == part().num_tokens && plan.top_k == job_.top_k &&
         plan.alignment == static_cast<uint32_t>(EffectiveAlignment(spec_));
}

cuda::StreamSteps EpRows::Read(const cuda::MovePlaces& places, const cuda::DeviceShape&) const {
  cuda::StreamSteps steps;
  steps.Copy(places.host_on_device,
             places.arenas[static_cast<size_t>(part().arena)] + part().stage_offset, plan_bytes_);
  return steps;
}

absl::Status EpRows::TakeRead(const uint8_t* host) {
  ViewPlanArgs view;
  view.plan = host;
  view.bytes = plan_bytes_;
  view.spec = spec_;
  view.rank = static_cast<int32_t>(rank_);
  view.ids = {group_.group_id, group_.epoch, job_.plan_id};
  absl::StatusOr<EpRouting> routing = EpRouting::FromPlan(view);
  if (!routing.ok()) return routing.status();
  if (!Fits(routing->header())) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " announced ", part().num_tokens,
                                                   " tokens, and its plan has ",
                                                   routing->num_tokens()));
  }
  routing_ = std::make_shared<const EpRouting>(*std::move(routing));
  known_.routings.Keep(plan(), routing_);
  return absl::OkStatus();
}

absl::Status EpRows::TakeNumbers(const std::vector<uint32_t>& tokens_from) {
  routes_ = {.alignment = EffectiveAlignment(spec_),
             .top_k = static_cast<int32_t>(job_.top_k),
             .group_id = group_.group_id,
             .plan_id = job_.plan_id,
             .recv_capacity = {},
             .num_tokens = tokens_from};
  for (const MovePart& one : job_.parts) routes_.recv_capacity.push_back(one.recv_capacity);
  // Clients without drops have said so already; here it keeps the library from its trap.
  if (!group_.spec.drop_on_overflow) {
    if (absl::Status fits = routing_->Fit(routes_.recv_capacity); !fits.ok()) return fits;
  }
  expected_.zones = routing_->ZoneSlots(part().recv_capacity);
  expected_.total = std::accumulate(expected_.zones.begin(), expected_.zones.end(), int64_t{0});
  return absl::OkStatus();
}

cuda::MoveSteps EpRows::Steps(const cuda::MovePlaces& places, const cuda::DeviceShape&) {
  const MovePart& mine = part();
  const cuda::DevicePointer region_at =
      places.arenas[static_cast<size_t>(mine.arena)] + mine.stage_offset;
  const RegionLayout region = LayoutOf(group_, job_, rank_, RegionStorage::kDeviceWorker);
  const cuda::DevicePointer stage = region_at + region.stage_at;
  const cuda::DevicePointer out = places.arenas[static_cast<size_t>(mine.arena)] + mine.out_offset;
  const cuda::DevicePointer out_weights = out + region.out_weights_at;

  cuda::LibraryCall call{.kind = job_.kind,
                         .num_tokens = static_cast<int64_t>(mine.num_tokens),
                         .top_k = static_cast<int32_t>(job_.top_k),
                         .hidden = static_cast<int64_t>(job_.row_bytes / 2),
                         .alignment = EffectiveAlignment(spec_),
                         .in_slots = static_cast<int64_t>(mine.recv_capacity),
                         .out_slots = static_cast<int64_t>(slots_),
                         .topk = places.device + layout_.topk,
                         .rows_in = stage,
                         .rows_out = lands_beside() ? places.device + layout_.landing : out,
                         .zone_slots = places.device + layout_.zones,
                         .total_slots = places.device + layout_.total};
  cuda::MoveSteps steps;
  steps.before.Copy(places.host_on_device + layout_.plan, region_at, sizeof(PlanHeader));
  Tell(places, steps);
  call.handle = use_.handle;
  call.tells_routes = use_.tells;
  Clear(region, out, steps.before);
  if (job_.has_weights) {
    call.weights_in = stage + region.weights_at;
    call.weights_out = out_weights;
  }
  if (job_.kind == shm::Kind::kDispatch) {
    call.weights_out = places.device + layout_.landing_weights;
    if (!job_.has_weights) {
      call.weights_in = places.device + layout_.weights;
      steps.before.Fill(call.weights_in, 0, mine.num_tokens * job_.top_k * sizeof(float));
    }
  }
  if (lands_beside()) steps.after.Copy(out, call.rows_out, live() * job_.row_bytes);
  if (scatters_ && job_.has_weights) {
    steps.after.Copy(out_weights, call.weights_out, live() * sizeof(float));
  }
  steps.library = call;
  return steps;
}

// All members come here in one order.
void EpRows::Tell(const cuda::MovePlaces& places, cuda::MoveSteps& steps) {
  use_ = known_.handles.Use(routes_);
  if (!use_.tells) return;
  const std::vector<int32_t> landing = routing_->Land(routes_.recv_capacity);
  EpTold& told = *use_.told;
  told.plan = routing_->header();
  for (size_t first = 0; first < landing.size(); first += job_.top_k) {
    const auto begin = landing.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::any_of(begin, begin + job_.top_k, [](int32_t expert) { return expert >= 0; }))
      continue;
    const auto token = static_cast<int64_t>(first / job_.top_k);
    if (told.end_bare == 0) told.first_bare = token;
    told.end_bare = token + 1;
  }
  std::memcpy(places.host + layout_.topk, landing.data(), landing.size() * sizeof(int32_t));
  steps.before.Copy(places.device + layout_.topk, places.host_on_device + layout_.topk,
                    landing.size() * sizeof(int32_t));
  steps.after.Copy(places.host_on_device + layout_.zones, places.device + layout_.zones,
                   num_locals() * sizeof(int32_t));
  steps.after.Copy(places.host_on_device + layout_.total, places.device + layout_.total,
                   sizeof(int32_t));
}

// What nobody writes reads as zeros.
void EpRows::Clear(const RegionLayout& region, cuda::DevicePointer out,
                   cuda::StreamSteps& steps) const {
  const cuda::DevicePointer weights = out + region.out_weights_at;
  if (scatters_) {
    steps.Fill(out + live() * job_.row_bytes, 0, (region.out_rows - live()) * job_.row_bytes);
    if (!job_.has_weights) return;
    steps.Fill(weights + live() * sizeof(float), 0,
               (region.num_out_weights - live()) * sizeof(float));
    return;
  }
  const auto first = static_cast<uint64_t>(use_.told->first_bare);
  const auto end = static_cast<uint64_t>(use_.told->end_bare);
  steps.Fill(out + first * job_.row_bytes, 0, (end - first) * job_.row_bytes);
  if (job_.has_weights) steps.Fill(weights, 0, region.num_out_weights * sizeof(float));
}

uint64_t EpRows::live() const {
  return std::min(static_cast<uint64_t>(expected_.total), part().recv_capacity);
}

absl::Status EpRows::Outcome(const uint8_t* host) const {
  if (use_.tells) TakeLayout(host);
  PlanHeader seen;
  std::memcpy(&seen, host + layout_.plan, sizeof seen);
  if (Same(seen, routing_->header()) && Same(seen, use_.told->plan)) return CheckLayout();
  known_.routings.Forget(plan());
  return absl::DataLossError(absl::StrCat("the plan of rank ", rank_,
                                          " has changed since it was prepared; prepare again"));
}

void EpRows::TakeLayout(const uint8_t* host) const {
  EpLayout& layout = use_.told->layout.emplace();
  layout.zones.resize(num_locals());
  std::memcpy(layout.zones.data(), host + layout_.zones, num_locals() * sizeof(int32_t));
  int32_t total = 0;
  std::memcpy(&total, host + layout_.total, sizeof total);
  layout.total = total;
}

absl::Status EpRows::CheckLayout() const {
  const std::optional<EpLayout>& got = use_.told->layout;
  // There is none where whoever told the routes has gone before they were looked at, with its tenant's arenas.
  if (!got.has_value() || *got == expected_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "output of rank ", rank_, ": NCCL EP laid its experts out in zones of ",
      absl::StrJoin(got->zones, ","), " slots, ", got->total, " in all, expected ",
      absl::StrJoin(expected_.zones, ","), ", ", expected_.total,
      " in all, as the routing plan has them; use backend=cuda with this version of the library"));
}

}  // namespace epd::nccl_ep
