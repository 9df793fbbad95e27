#include "daemon/worker/engine/request_check.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/backend/kernel_status.h"
#include "daemon/worker/engine/cause_text.h"
#include "kernels/cuda/plan_report.h"
#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/route_counts.h"
#include "proto/epd/v1/row_dtype.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

constexpr uint32_t kMaxStatusCode = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
// The widest element of a row, with room for a quantised payload's scales.
constexpr uint64_t kMaxRowBytes = uint64_t{limits::kHidden} * limits::kMovedElementBytes;

absl::Status Bad(absl::string_view field, uint64_t got, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", got, ", expected ", expected));
}

// Peers read the stage as far as the group's sizes go, and take no rank's word for less.
absl::Status CheckDeviceStage(const shm::SlotRequest& request, const Tenant& tenant) {
  const GroupSpec& spec = tenant.start.spec;
  if (!tenant.start.on_device() || tenant.worker_executor()) return absl::OkStatus();
  if (request.recv_capacity > spec.recv_capacity_per_rank) {
    return Bad("recv_capacity", request.recv_capacity,
               absl::StrCat("at most recv_capacity_per_rank=", spec.recv_capacity_per_rank));
  }
  const uint64_t element = shm::DtypeBytes(request.dtype);
  if (!shm::Scatters(request.kind) && element != 0 && request.row_bytes % element != 0) {
    return Bad("row_bytes", request.row_bytes,
               absl::StrCat("a multiple of the ", element, " bytes of its dtype"));
  }
  const uint64_t stage_bytes = MakeLayout(request.kind,
                                          {.num_experts = spec.num_experts,
                                           .num_tokens = spec.max_tokens_per_rank,
                                           .num_slots = spec.recv_capacity_per_rank,
                                           .top_k = MostTopK(spec.top_k),
                                           .row_bytes = request.row_bytes},
                                          RegionStorage::kDeviceRanks)
                                   .stage_bytes;
  if (request.stage_bytes < stage_bytes) {
    return Bad("stage_bytes", request.stage_bytes,
               absl::StrCat(
                   "at least ", stage_bytes, " for max_tokens_per_rank=", spec.max_tokens_per_rank,
                   " tokens and recv_capacity_per_rank=", spec.recv_capacity_per_rank, " slots"));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const shm::SlotRequest& request, const Tenant& tenant, uint64_t limit) {
  const GroupSpec& spec = tenant.start.spec;
  if (request.num_tokens > spec.max_tokens_per_rank) {
    return Bad("num_tokens", request.num_tokens,
               absl::StrCat("at most max_tokens_per_rank=", spec.max_tokens_per_rank));
  }
  if (request.recv_capacity > limits::kSlots) {
    return Bad("recv_capacity", request.recv_capacity, absl::StrCat("at most ", limits::kSlots));
  }
  if (request.kind == shm::Kind::kPrepare) {
    const uint64_t counts_bytes =
        MakeLayout(request.kind, {.num_experts = spec.num_experts}, RegionStorage::kHostRanks)
            .stage_bytes;
    if (request.stage_bytes < counts_bytes) {
      return Bad("stage_bytes", request.stage_bytes,
                 absl::StrCat("at least ", counts_bytes, " for the counts of ", spec.num_experts,
                              " experts"));
    }
  }
  if (absl::Status stage = CheckDeviceStage(request, tenant); !stage.ok()) return stage;
  if (tenant.peers.has_value() && tenant.worker_executor() &&
      shm::StageOffset(request.plan_bytes) > request.stage_bytes) {
    return Bad("plan_bytes", request.plan_bytes,
               absl::StrCat("within the stage_bytes=", request.stage_bytes));
  }
  if (request.stage_bytes > limit || request.out_bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "staging of ", request.stage_bytes, " bytes and output of ", request.out_bytes,
        " bytes exceed an arena of ", limit,
        " bytes; start epd with a larger staging pool, or send fewer tokens per call [EPD-1102]"));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const shm::SlotRequest& request, const Tenant& tenant) {
  const uint64_t max_top_k = MostTopK(tenant.start.spec.top_k);
  if (request.top_k == 0 || request.top_k > max_top_k) {
    return Bad("top_k", request.top_k, absl::StrCat("1 to ", max_top_k));
  }
  if (request.alignment > limits::kAlignment ||
      (request.alignment != 0 && !std::has_single_bit(request.alignment))) {
    return Bad("alignment", request.alignment,
               absl::StrCat("0 or a power of two up to ", limits::kAlignment));
  }
  const bool prepare = request.kind == shm::Kind::kPrepare;
  if (!prepare && (request.row_bytes == 0 || request.row_bytes > kMaxRowBytes)) {
    return Bad("row_bytes", request.row_bytes, absl::StrCat("1 to ", kMaxRowBytes));
  }
  if (!prepare && request.plan_id == 0) return Bad("plan_id", 0, "the operation id of a prepare");
  const bool moved = Scatters(request.kind) && shm::DtypeBytes(request.dtype) != 0;
  if (!moved && !shm::IsReducible(request.dtype) && !(prepare && request.dtype == 0)) {
    return Bad("dtype", request.dtype, "1 (float32), 2 (bfloat16) or 3 (float16)");
  }
  if (request.has_weights > 1) return Bad("has_weights", request.has_weights, "0 or 1");
  return absl::OkStatus();
}

absl::Status ReadMoved(const shm::SlotRequest& request, const Announcement& said,
                       const Tenant& tenant) {
  PlanHeader got = {};
  static_assert(sizeof got == sizeof request.stream.plan_header);
  std::memcpy(&got, request.stream.plan_header, sizeof got);
  const GroupSpec& group = tenant.start.spec;
  RoutingSpec spec;
  spec.num_ranks = static_cast<int32_t>(group.num_ranks);
  spec.num_experts = static_cast<int32_t>(group.num_experts);
  spec.top_k = static_cast<int32_t>(said.top_k);
  spec.alignment = static_cast<int32_t>(said.alignment);
  spec.max_tokens = group.max_tokens_per_rank;
  const PlanHeader want =
      MakePlanHeader(spec, static_cast<int32_t>(request.rank),
                     {tenant.start.group.value, tenant.start.epoch.value, said.plan_id},
                     static_cast<int64_t>(said.num_tokens), got.num_routes);
  return ToStatus(cuda::ReadPlanReport(request.stream.move_report, got, want));
}

}  // namespace

absl::Status CheckPlace(const shm::SlotRequest& request, SessionId session, const Tenant& tenant) {
  const TenantStart& start = tenant.start;
  if (request.epoch != start.epoch.value || request.formation != start.formation.value) {
    return absl::AbortedError(absl::StrCat("the call carries epoch ", request.epoch, " formation ",
                                           request.formation, ", the group is at epoch ",
                                           start.epoch.value, " formation ", start.formation.value,
                                           "; prepare again in the new formation"));
  }
  if (request.rank >= tenant.num_ranks()) {
    return Bad("rank", request.rank, absl::StrCat("less than num_ranks=", tenant.num_ranks()));
  }
  if (tenant.sessions[request.rank] != session) {
    const RankHolder member = tenant.MemberOf(request.rank);
    return absl::PermissionDeniedError(
        absl::StrCat("rank ", request.rank, " belongs to session ", member.session.value, " (",
                     Describe(member, "joined"), "), not to session ", session.value));
  }
  if (request.has_name > 1) return Bad("has_name", request.has_name, "0 or 1");
  return absl::OkStatus();
}

absl::Status CheckOwnError(const shm::SlotRequest& request) {
  if (request.error_code > kMaxStatusCode) {
    return Bad("error_code", request.error_code, absl::StrCat("at most ", kMaxStatusCode));
  }
  if (request.error_code == 0) return absl::OkStatus();
  // What the client checked itself has a number of its own.
  std::string why = SafeText(text::Read(request.error));
  if (!absl::StrContains(why, "[EPD-")) why += " [EPD-1008]";
  return absl::Status(static_cast<absl::StatusCode>(request.error_code), why);
}

absl::Status CheckAnnounce(const shm::SlotRequest& request, const Tenant& tenant,
                           uint64_t max_region_bytes) {
  if (absl::Status own = CheckOwnError(request); !own.ok()) return own;
  const auto kind = static_cast<uint32_t>(request.kind);
  if (kind < static_cast<uint32_t>(shm::Kind::kPrepare) ||
      kind > static_cast<uint32_t>(shm::Kind::kCombineBackward)) {
    return Bad("kind", kind, "1 to 5");
  }
  if (absl::Status status = CheckShape(request, tenant); !status.ok()) return status;
  return CheckSizes(request, tenant, max_region_bytes);
}

absl::Status CheckPublish(const shm::SlotRequest& request, const Part& part, const Tenant& tenant) {
  const absl::Status own = CheckOwnError(request);
  const bool carries =
      part.site.has_value() && !tenant.worker_executor() && part.said.kind != shm::Kind::kPrepare;
  if (!own.ok() || !carries) return own;
  return ReadMoved(request, part.said, tenant);
}

std::vector<uint16_t> RouteCountsOf(const shm::SlotRequest& request, const Part& part,
                                    const Tenant& tenant) {
  const bool told = part.site.has_value() && part.said.kind == shm::Kind::kPrepare;
  if (!told || tenant.worker_executor()) return {};
  std::vector<uint16_t> counts(std::min(tenant.start.spec.num_experts, shm::kMaxRouteCounts));
  std::memcpy(counts.data(), reinterpret_cast<const char*>(&request) + shm::kRouteCountsAt,
              counts.size() * sizeof(uint16_t));
  return counts;
}

absl::Status CheckEagerBuffer(const shm::SlotRequest& request, const EagerArea& eager,
                              const EagerOptions& options) {
  const uint32_t first = request.announce.eager_buffer;
  if (first >= eager.num_eager_buffers) {
    return Bad("eager buffer", first,
               absl::StrCat("less than num_eager_buffers=", eager.num_eager_buffers));
  }
  const bool few = eager.num_eager_buffers <= options.few_buffers;
  const uint32_t num_buffers = few ? 1 : eager.num_eager_buffers - first;
  if (request.stage_bytes > num_buffers * options.buffer_bytes) {
    return Bad("stage_bytes", request.stage_bytes,
               absl::StrCat("at most the ", num_buffers * options.buffer_bytes, " of ", num_buffers,
                            " eager buffer", num_buffers == 1 ? "" : "s"));
  }
  return absl::OkStatus();
}

}  // namespace epd
