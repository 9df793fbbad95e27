#include "daemon/worker/request_check.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "daemon/worker/cause_text.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd {
namespace {

constexpr uint32_t kMaxStatusCode = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
constexpr uint32_t kMaxAlignment = 1u << 16;
// Of a row: the widest element, with room for a quantised payload's scales.
constexpr uint64_t kMaxRowBytes = uint64_t{kMaxHidden} * 8;

absl::Status Bad(absl::string_view field, uint64_t got, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", got, ", expected ", expected));
}

absl::Status CheckSizes(const shm::SlotRequest& request, const Tenant& tenant, uint64_t limit) {
  const GroupSpec& spec = tenant.start.spec;
  if (request.num_tokens > spec.max_tokens_per_rank) {
    return Bad("num_tokens", request.num_tokens,
               absl::StrCat("at most max_tokens_per_rank=", spec.max_tokens_per_rank));
  }
  if (request.recv_capacity > kMaxSlots) {
    return Bad("recv_capacity", request.recv_capacity, absl::StrCat("at most ", kMaxSlots));
  }
  if (request.kind == shm::Kind::kPrepare) {
    const uint64_t counts_bytes = uint64_t{spec.num_experts} * sizeof(int32_t);
    if (request.stage_bytes < counts_bytes) {
      return Bad("stage_bytes", request.stage_bytes,
                 absl::StrCat("at least ", counts_bytes, " for the counts of ", spec.num_experts,
                              " experts"));
    }
  }
  if (tenant.span.has_value() && tenant.worker_executor() &&
      shm::StageOffset(request.plan_bytes) > request.stage_bytes) {
    return Bad("plan_bytes", request.plan_bytes,
               absl::StrCat("within the stage_bytes=", request.stage_bytes));
  }
  if (request.stage_bytes > limit || request.out_bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "staging of ", request.stage_bytes, " bytes and output of ", request.out_bytes,
        " bytes exceed an arena of ", limit,
        " bytes; start epd with a larger staging pool, or send fewer tokens per call"));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const shm::SlotRequest& request, const Tenant& tenant) {
  const uint32_t max_top_k = tenant.start.spec.top_k == 0 ? kMaxGroupTopK : tenant.start.spec.top_k;
  if (request.top_k == 0 || request.top_k > max_top_k) {
    return Bad("top_k", request.top_k, absl::StrCat("1 to ", max_top_k));
  }
  if (request.alignment > kMaxAlignment ||
      (request.alignment != 0 && !std::has_single_bit(request.alignment))) {
    return Bad("alignment", request.alignment,
               absl::StrCat("0 or a power of two up to ", kMaxAlignment));
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

}  // namespace

absl::Status CheckPlace(const shm::SlotRequest& request, SessionId session, const Tenant& tenant) {
  const TenantStart& start = tenant.start;
  if (request.epoch != start.epoch.value || request.formation != start.formation.value) {
    return absl::AbortedError(absl::StrCat("the call carries epoch ", request.epoch, " formation ",
                                           request.formation, ", the group is at epoch ",
                                           start.epoch.value, " formation ", start.formation.value,
                                           "; prepare again in the new formation"));
  }
  if (request.rank >= start.members.size()) {
    return Bad("rank", request.rank, absl::StrCat("less than num_ranks=", start.members.size()));
  }
  const Placement& member = start.members[request.rank];
  if (member.session != session) {
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
  return absl::Status(static_cast<absl::StatusCode>(request.error_code),
                      SafeText(request.text, sizeof request.text));
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

absl::Status CheckLane(const shm::SlotRequest& request, const LaneArea& lanes,
                       const LaneOptions& options) {
  if (request.op_id >= lanes.num_lanes) {
    return Bad("lane", request.op_id, absl::StrCat("less than num_lanes=", lanes.num_lanes));
  }
  if (request.stage_bytes > options.lane_bytes) {
    return Bad("stage_bytes", request.stage_bytes,
               absl::StrCat("at most the ", options.lane_bytes, " of a lane"));
  }
  return absl::OkStatus();
}

}  // namespace epd
