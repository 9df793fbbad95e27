#include "daemon/worker/shell/control_codec.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace epd {
namespace {

// With up to some hundred bytes each they stay below the limit of a message.
constexpr size_t kMaxOperationsShown = 256;
constexpr size_t kMaxRanksShown = 64;

absl::Duration DurationOr(const google::protobuf::Duration& field, bool present,
                          absl::Duration fallback) {
  if (!present) return fallback;
  return absl::Seconds(field.seconds()) + absl::Nanoseconds(field.nanos());
}

void SetDuration(absl::Duration value, google::protobuf::Duration* out) {
  absl::Duration rest;
  out->set_seconds(absl::IDivDuration(value, absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

absl::StatusOr<GroupSpec> SpecFromProto(const v1::GroupSpec& message) {
  GroupSpec spec;
  spec.name = message.name();
  spec.instance = message.instance();
  spec.tenant = message.tenant();
  spec.num_ranks = message.num_ranks();
  spec.num_experts = message.num_experts();
  for (const uint32_t owner : message.expert_owner()) spec.expert_owner.push_back(Rank(owner));
  spec.max_tokens_per_rank = message.max_tokens_per_rank();
  spec.recv_capacity_per_rank = message.recv_capacity_per_rank();
  spec.hidden = message.hidden();
  spec.top_k = message.top_k();
  spec.max_token_dtype = static_cast<Dtype>(message.max_token_dtype());
  spec.drop_on_overflow = message.drop_on_overflow();
  spec.executor = static_cast<Executor>(message.executor());
  spec.backend = message.backend();
  const v1::Deadlines& limits = message.deadlines();
  const Deadlines defaults;
  spec.deadlines.warn_after =
      DurationOr(limits.warn_after(), limits.has_warn_after(), defaults.warn_after);
  spec.deadlines.absent = DurationOr(limits.absent(), limits.has_absent(), defaults.absent);
  spec.deadlines.undecided =
      DurationOr(limits.undecided(), limits.has_undecided(), defaults.undecided);
  spec.deadlines.form = DurationOr(limits.form(), limits.has_form(), defaults.form);
  if (absl::Status valid = Validate(spec); !valid.ok()) return valid;
  return spec;
}

WorkerName NameOf(const std::string& text) { return ParseWorkerName(text).value_or(kCpuWorker); }

}  // namespace

absl::StatusOr<TenantStart> TenantStartFromProto(const v1::StartTenant& message) {
  TenantStart start{.group = GroupId(message.group_id()),
                    .epoch = Epoch(message.epoch()),
                    .formation = Formation(message.formation()),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = StatusFromProto(message.base_cause()),
                    .nodes = {},
                    .communicator = GroupId(message.communicator_id())};
  absl::StatusOr<GroupSpec> spec = SpecFromProto(message.spec());
  if (!spec.ok()) return spec.status();
  start.spec = *std::move(spec);
  for (const v1::StartTenant::Member& member : message.members()) {
    start.members.push_back(RankHolder{.rank = Rank(member.rank()),
                                       .node = NodeId{member.node()},
                                       .session = SessionId(member.session_id()),
                                       .arena_index = member.arena_index(),
                                       .host = member.host(),
                                       .pid = member.pid(),
                                       .client_name = member.client_name(),
                                       .worker = NameOf(member.worker())});
  }
  std::sort(start.members.begin(), start.members.end(),
            [](const RankHolder& a, const RankHolder& b) { return a.rank < b.rank; });
  for (const v1::StartTenant::Node& node : message.nodes()) {
    start.nodes.push_back({.name = NodeId{node.name()},
                           .worker = Incarnation(node.worker()),
                           .address = node.address(),
                           .worker_name = NameOf(node.worker_name())});
  }
  for (const v1::StartTenant::Base& base : message.bases()) {
    ExecutionBase entry{.rank = Rank(base.rank()), .program = {}, .base = base.base()};
    if (base.program().size() != entry.program.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a program digest of ", base.program().size(),
                                                     " bytes, expected ", entry.program.size()));
    }
    std::memcpy(entry.program.data(), base.program().data(), entry.program.size());
    start.bases.push_back(entry);
  }
  return start;
}

void ShareToProto(const ArenaShare& share, v1::TenantReady::Arena& arena) {
  arena.set_bytes(share.bytes);
  switch (share.sharing) {
    case ArenaSharing::kMemfd:
      arena.set_sharing(v1::ARENA_SHARING_MEMFD);
      break;
    case ArenaSharing::kDeviceDescriptor:
      arena.set_sharing(v1::ARENA_SHARING_DEVICE_DESCRIPTOR);
      break;
    case ArenaSharing::kDeviceHandle:
      arena.set_sharing(v1::ARENA_SHARING_DEVICE_HANDLE);
      break;
  }
  arena.set_handle(share.handle);
  arena.set_device_uuid(share.device_uuid);
}

v1::WorkerPast PastToProto(const std::vector<ExchangeSnapshot::PastLine>& lines) {
  v1::WorkerPast message;
  for (const ExchangeSnapshot::PastLine& line : lines) {
    v1::WorkerPast::Operation& out = *message.add_operations();
    out.set_rank(line.rank.value);
    out.set_kind(line.kind);
    out.set_key(line.key);
    out.set_fingerprint(line.fingerprint);
    out.set_phase(line.phase);
    SetDuration(line.age, out.mutable_age());
    out.set_code(static_cast<int32_t>(line.code));
  }
  return message;
}

v1::WorkerSnapshot SnapshotToProto(const ExchangeSnapshot& snapshot) {
  v1::WorkerSnapshot message;
  const size_t num_shown = std::min(snapshot.operations.size(), kMaxOperationsShown);
  for (size_t i = 0; i < num_shown; ++i) {
    const ExchangeSnapshot::OperationLine& line = snapshot.operations[i];
    v1::WorkerSnapshot::Operation& out = *message.add_operations();
    out.set_op_id(line.operation);
    out.set_group_id(line.group.value);
    out.set_kind(line.kind);
    out.set_phase(line.phase);
    SetDuration(line.age, out.mutable_age());
    const size_t num_ranks = std::min(line.waiting_for.size(), kMaxRanksShown);
    for (size_t r = 0; r < num_ranks; ++r) out.add_waiting_for(line.waiting_for[r].value);
    out.set_region_bytes(line.region_bytes);
    out.set_key(line.key);
  }
  for (const ExchangeSnapshot::TenantLine& line : snapshot.tenants) {
    v1::WorkerSnapshot::Tenant& out = *message.add_tenants();
    out.set_group_id(line.group.value);
    out.set_formation(line.formation.value);
    out.set_generation(line.generation);
    out.set_num_operations(line.num_good);
    out.set_num_failed(line.num_failed);
    out.set_bytes_moved(line.bytes_moved);
  }
  for (const ExchangeSnapshot::SetLine& line : snapshot.sets) {
    v1::WorkerSnapshot::ArenaSet& out = *message.add_arena_sets();
    for (const GroupId group : line.groups) out.add_group_ids(group.value);
    for (const SessionId session : line.sessions) out.add_session_ids(session.value);
    out.set_num_arenas(static_cast<uint32_t>(line.status.num_arenas));
    out.set_arena_bytes(line.status.arena_bytes);
    out.set_in_use_bytes(line.status.in_use_bytes);
    out.set_committed_bytes(line.status.committed_bytes);
    out.set_peak_bytes(line.status.peak_in_use_bytes);
    out.set_quarantined_bytes(line.status.quarantined_bytes);
  }
  message.set_pool_bytes(snapshot.pool_bytes);
  message.set_pool_committed_bytes(snapshot.pool_committed_bytes);
  message.set_pool_peak_bytes(snapshot.pool_peak_bytes);
  return message;
}

}  // namespace epd
