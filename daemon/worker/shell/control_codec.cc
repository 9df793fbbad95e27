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

WorkerName NameOf(const std::string& text) { return ParseWorkerName(text).value_or(kCpuWorker); }

}  // namespace

absl::StatusOr<TenantStart> TenantStartFromProto(const v1::StartTenant& message) {
  TenantStart start{.group = GroupId(message.group_id()),
                    .epoch = Epoch(message.epoch()),
                    .formation = Formation(message.formation()),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = FromProto(message.base_cause()),
                    .nodes = {},
                    .communicator = GroupId(message.communicator_id())};
  absl::StatusOr<GroupSpec> spec = FromProto(message.spec(), SpecDefaults());
  if (!spec.ok()) return spec.status();
  if (absl::Status valid = Validate(*spec); !valid.ok()) return valid;
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
    *out.mutable_age() = ToProto(line.age);
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
    *out.mutable_age() = ToProto(line.age);
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
    out.set_num_failed_calls(line.num_failed_calls);
    out.set_ended(line.ended);
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
