#include "daemon/backend/nccl_ep/ep_rows.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

EpRows::EpRows(const MoveGroup& group, const MoveJob& job, const GroupSpec& library)
    : group_(group),
      job_(job),
      library_(library),
      slots_(LibrarySlots(library)),
      scatters_(shm::Scatters(job.kind)),
      spec_(RoutingOf(group, job)) {}

absl::StatusOr<std::unique_ptr<cuda::MemberRows>> EpRows::Create(const MoveGroup& group,
                                                                 const MoveJob& job,
                                                                 const GroupSpec& library,
                                                                 int self) {
  std::unique_ptr<EpRows> rows(new EpRows(group, job, library));
  if (absl::Status checked = rows->Check(self); !checked.ok()) return checked;
  rows->Arrange();
  return rows;
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
  layout_.topk = take(routes * sizeof(int32_t));
  layout_.zones = take(num_locals() * sizeof(int32_t));
  layout_.total = take(sizeof(int32_t));
  room_.host_bytes = std::max<uint64_t>(used, plan_bytes_);
  if (job_.kind == shm::Kind::kDispatch) {
    layout_.weights = take(routes * sizeof(float));
    layout_.landing_weights = take(slots_ * sizeof(float));
  }
  if (lands_beside()) layout_.landing = take(slots_ * job_.row_bytes);
  room_.device_bytes = used;
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
  if (routing->num_tokens() != static_cast<int64_t>(part().num_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " announced ", part().num_tokens,
                                                   " tokens, and its plan has ",
                                                   routing->num_tokens()));
  }
  routing_.emplace(*std::move(routing));
  return absl::OkStatus();
}

absl::Status EpRows::TakeNumbers(const std::vector<uint32_t>&) {
  std::vector<uint64_t> capacity;
  for (const MovePart& one : job_.parts) capacity.push_back(one.recv_capacity);
  // Clients without drops have said so already; here it keeps the library from its trap.
  absl::StatusOr<std::vector<int32_t>> landing =
      routing_->Land(capacity, group_.spec.drop_on_overflow);
  if (!landing.ok()) return landing.status();
  landing_ = *std::move(landing);
  zones_ = routing_->ZoneSlots(part().recv_capacity);
  return absl::OkStatus();
}

cuda::MoveSteps EpRows::Steps(const cuda::MovePlaces& places, const cuda::DeviceShape&) {
  const MovePart& mine = part();
  const cuda::DevicePointer arena = places.arenas[static_cast<size_t>(mine.arena)];
  const RegionLayout region = LayoutOf(group_, job_, rank_, RegionStorage::kDeviceWorker);
  const cuda::DevicePointer stage = arena + mine.stage_offset + region.stage_at;
  const cuda::DevicePointer out = arena + mine.out_offset;
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
  std::memcpy(places.host + layout_.topk, landing_.data(), landing_.size() * sizeof(int32_t));
  steps.before.Copy(call.topk, places.host_on_device + layout_.topk,
                    landing_.size() * sizeof(int32_t));
  // What nobody writes reads as zeros: padding, the tail, tokens without a route.
  steps.before.Fill(out, 0, region.out_rows * job_.row_bytes);
  if (job_.has_weights) {
    call.weights_in = stage + region.weights_at;
    call.weights_out = out_weights;
    steps.before.Fill(out_weights, 0, region.num_out_weights * sizeof(float));
  }
  if (job_.kind == shm::Kind::kDispatch) {
    call.weights_out = places.device + layout_.landing_weights;
    if (!job_.has_weights) {
      call.weights_in = places.device + layout_.weights;
      steps.before.Fill(call.weights_in, 0, landing_.size() * sizeof(float));
    }
  }
  uint64_t live = 0;
  for (const int32_t zone : zones_) live += static_cast<uint64_t>(zone);
  live = std::min(live, region.out_rows);
  if (lands_beside()) steps.after.Copy(out, call.rows_out, live * job_.row_bytes);
  if (scatters_ && job_.has_weights) {
    steps.after.Copy(out_weights, call.weights_out, live * sizeof(float));
  }
  steps.after.Copy(places.host_on_device + layout_.zones, call.zone_slots,
                   num_locals() * sizeof(int32_t));
  steps.after.Copy(places.host_on_device + layout_.total, call.total_slots, sizeof(int32_t));
  steps.library = call;
  return steps;
}

absl::Status EpRows::Outcome(const uint8_t* host) const {
  std::vector<int32_t> zones(num_locals());
  std::memcpy(zones.data(), host + layout_.zones, zones.size() * sizeof(int32_t));
  int32_t total = 0;
  std::memcpy(&total, host + layout_.total, sizeof total);
  int64_t sum = 0;
  for (const int32_t zone : zones_) sum += zone;
  if (zones == zones_ && total == sum) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "output of rank ", rank_, ": NCCL EP laid its experts out in zones of ",
      absl::StrJoin(zones, ","), " slots, ", total, " in all, expected ",
      absl::StrJoin(zones_, ","), ", ", sum, " in all, as the routing plan has them; use backend=",
      "cuda with this version of the library"));
}

}  // namespace epd::nccl_ep
