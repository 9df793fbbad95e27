#include "daemon/worker/shell/control_codec.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

constexpr size_t kMaxOperationsShown = 256;
constexpr size_t kMaxRanksShown = 64;
constexpr int kMaxIdsShown = 4096;  // Of the sessions, and of the groups, of one set of arenas.

// What a message has besides its elements, and an element besides its own bytes.
constexpr size_t kHeadBytes = 256;
constexpr size_t kElementHeadBytes = 8;
constexpr size_t kMaxVarintBytes = 10;
static_assert(kMaxRoutesShown * kMaxVarintBytes + kHeadBytes < limits::kDatagramBytes &&
              2 * kMaxIdsShown * kMaxVarintBytes + kHeadBytes < limits::kDatagramBytes);

class SnapshotParts {
 public:
  explicit SnapshotParts(uint64_t request) : request_(request) { Begin(); }

  v1::WorkerSnapshot& last() { return *parts_.back().mutable_snapshot(); }
  template <typename Elements>
  void Add(Elements& elements, Elements* (v1::WorkerSnapshot::*field)()) {
    for (auto& element : elements) {
      const size_t bytes = element.ByteSizeLong() + kElementHeadBytes;
      if (bytes_ + bytes > limits::kDatagramBytes) {
        last().set_more(true);
        Begin();
      }
      bytes_ += bytes;
      *(last().*field)()->Add() = std::move(element);
    }
  }
  std::vector<v1::FromWorker> Take() { return std::move(parts_); }

 private:
  void Begin() {
    parts_.emplace_back();
    last().set_request_id(request_);
    bytes_ = kHeadBytes;
  }

  const uint64_t request_;
  std::vector<v1::FromWorker> parts_;
  size_t bytes_ = 0;
};

WorkerName NameOf(const std::string& text) { return ParseWorkerName(text).value_or(kCpuWorker); }

// By Phase.
constexpr const char* kPhaseNames[] = {"announce", "admit", "copy", "move", "pull"};

// What has not happened yet is left out.
v1::KindFigures KindToProto(size_t kind, const KindCounts& counts) {
  v1::KindFigures message;
  for (size_t code = 0; code < counts.by_outcome.size(); ++code) {
    if (counts.by_outcome[code] == 0) continue;
    v1::KindFigures::Outcome& outcome = *message.add_outcomes();
    outcome.set_code(static_cast<int32_t>(code));
    outcome.set_num_operations(counts.by_outcome[code]);
  }
  for (size_t phase = 0; phase < counts.phases.size(); ++phase) {
    const KindCounts::PhaseTimes& times = counts.phases[phase];
    if (absl::c_all_of(times.counts, [](uint64_t count) { return count == 0; })) continue;
    v1::KindFigures::Phase& shown = *message.add_phases();
    shown.set_phase(kPhaseNames[phase]);
    shown.set_seconds(absl::ToDoubleSeconds(times.sum));
    shown.mutable_counts()->Add(times.counts.begin(), times.counts.end());
  }
  message.set_kind(KindName(static_cast<shm::Kind>(kind)));
  return message;
}

v1::WorkerSnapshot::Operation LineToProto(const ExchangeSnapshot::OperationLine& line) {
  v1::WorkerSnapshot::Operation out;
  out.set_op_id(line.operation);
  out.set_group_id(line.group.value);
  out.set_kind(line.kind);
  out.set_phase(line.phase);
  *out.mutable_age() = ToProto(line.age);
  const size_t num_ranks = std::min(line.waiting_for.size(), kMaxRanksShown);
  for (size_t r = 0; r < num_ranks; ++r) out.add_waiting_for(line.waiting_for[r].value);
  out.set_region_bytes(line.region_bytes);
  out.set_key(line.key);
  return out;
}

v1::WorkerSnapshot::ArenaSet SetToProto(const ExchangeSnapshot::SetLine& line) {
  v1::WorkerSnapshot::ArenaSet out;
  for (const GroupId group : line.groups) {
    if (out.group_ids_size() < kMaxIdsShown) out.add_group_ids(group.value);
  }
  for (const SessionId session : line.sessions) {
    if (out.session_ids_size() < kMaxIdsShown) out.add_session_ids(session.value);
  }
  out.set_num_arenas(static_cast<uint32_t>(line.status.num_arenas));
  out.set_arena_bytes(line.status.arena_bytes);
  out.set_in_use_bytes(line.status.in_use_bytes);
  out.set_committed_bytes(line.status.committed_bytes);
  out.set_peak_bytes(line.status.peak_in_use_bytes);
  out.set_quarantined_bytes(line.status.quarantined_bytes);
  return out;
}

}  // namespace

EngineLimits LimitsFromProto(const v1::WorkerHello::Limits& message) {
  const auto or_all = [](uint64_t limit, uint64_t all) { return limit == 0 ? all : limit; };
  EngineLimits limits;
  limits.operations_per_session =
      or_all(message.operations_per_session(), limits.operations_per_session);
  limits.operations_per_uid = or_all(message.operations_per_uid(), limits.operations_per_uid);
  limits.staging_per_tenant = or_all(message.staging_per_tenant(), limits.staging_per_tenant);
  limits.staging_per_uid = or_all(message.staging_per_uid(), limits.staging_per_uid);
  if (message.has_undecided()) limits.undecided = FromProto(message.undecided());
  return limits;
}

v1::NeighbourMessage NeighbourToProto(const NeighbourMessage& message) {
  v1::NeighbourMessage out;
  out.set_worker(message.worker);
  out.set_communicator_id(message.communicator);
  out.set_epoch(message.epoch);
  if (!message.arena.has_value()) {
    out.mutable_greeting()->set_problem(message.problem);
    return out;
  }
  out.mutable_arena()->set_group_id(message.arena->group_id);
  out.mutable_arena()->set_formation(message.arena->formation);
  out.mutable_arena()->set_rank(message.arena->rank);
  out.mutable_arena()->set_bytes(message.arena->bytes);
  return out;
}

absl::StatusOr<NeighbourMessage> NeighbourFromProto(const v1::NeighbourMessage& message,
                                                    std::vector<UniqueFd> fds) {
  const bool bare = message.has_greeting() && !message.greeting().problem().empty();
  const bool known = message.has_greeting() || message.has_arena();
  if (!known || fds.size() != (bare ? 0u : 1u)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a neighbour's message of kind ", static_cast<int>(message.body_case()),
                     " with ", fds.size(), " descriptors, expected ", bare ? 0 : 1,
                     "; the worker may have none left (LimitNOFILE)"));
  }
  NeighbourMessage out;
  out.worker = message.worker();
  out.communicator = message.communicator_id();
  out.epoch = message.epoch();
  if (!bare) out.fd = std::move(fds[0]);
  if (message.has_greeting()) {
    out.problem = message.greeting().problem();
    return out;
  }
  out.arena = {.group_id = message.arena().group_id(),
               .formation = message.arena().formation(),
               .rank = message.arena().rank(),
               .bytes = message.arena().bytes()};
  return out;
}

absl::StatusOr<TenantStart> TenantStartFromProto(const v1::StartTenant& message) {
  TenantStart start{.group = GroupId(message.group_id()),
                    .epoch = Epoch(message.epoch()),
                    .formation = Formation(message.formation()),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = FromProto(message.base_cause()),
                    .nodes = {},
                    .communicator = GroupId(message.communicator_id()),
                    .landing_arenas = message.landing_arenas()};
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
                           .worker_name = NameOf(node.worker_name()),
                           .secret = node.secret()});
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

namespace {

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

}  // namespace

absl::Status PutArenas(ArenaSet& set, const std::vector<Rank>& ranks, v1::TenantReady& ready,
                       std::vector<int>& fds) {
  std::map<int, v1::TenantReady::Arena*> landings;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const absl::StatusOr<ArenaShare> share = set.Share(static_cast<int>(i));
    if (!share.ok()) return share.status();
    const auto known = landings.find(share->landing);
    const bool is_new = known == landings.end();
    v1::TenantReady::Arena& arena = is_new ? *ready.add_arenas() : *known->second;
    if (share->landing >= 0) {
      landings[share->landing] = &arena;
      arena.add_landing_ranks(ranks[i].value);
    }
    if (!is_new) continue;
    arena.set_rank(ranks[i].value);
    ShareToProto(*share, arena);
    for (const int fd : {share->read_write_fd, share->read_only_fd}) {
      if (fd >= 0) fds.push_back(fd);
    }
  }
  return absl::OkStatus();
}

namespace {

int64_t NanosOf(const RankTrace& trace, TracePoint point) {
  const absl::Time at = trace.at[static_cast<size_t>(point)];
  return at == absl::InfinitePast() ? 0 : absl::ToUnixNanos(at);
}

template <typename Bytes>
std::string BytesOf(const Bytes& bytes) {
  const bool none = absl::c_all_of(bytes, [](uint8_t byte) { return byte == 0; });
  return none ? std::string() : std::string(bytes.begin(), bytes.end());
}

}  // namespace

v1::TracePage TraceToProto(const OperationTraces::Page& page) {
  v1::TracePage message;
  message.set_next(page.next);
  message.set_num_lost(page.num_lost);
  message.set_more(page.more);
  for (const RankTrace& trace : page.ranks) {
    v1::RankTrace& out = *message.add_ranks();
    out.set_trace_id(TraceIdOf(trace));
    out.set_group_id(trace.group.value);
    out.set_epoch(trace.epoch.value);
    out.set_formation(trace.formation.value);
    out.set_rank(trace.rank.value);
    out.set_pid(trace.pid);
    out.set_kind(KindName(trace.kind));
    out.set_key(absl::StrCat(trace.name.data(), " ", Describe(trace.key)));
    out.set_announced_ns(NanosOf(trace, TracePoint::kAnnounced));
    out.set_queued_ns(NanosOf(trace, TracePoint::kQueued));
    out.set_admitted_ns(NanosOf(trace, TracePoint::kAdmitted));
    out.set_published_ns(NanosOf(trace, TracePoint::kPublished));
    out.set_decided_ns(NanosOf(trace, TracePoint::kDecided));
    out.set_pulled_ns(NanosOf(trace, TracePoint::kPulled));
    out.set_ended_ns(NanosOf(trace, TracePoint::kEnded));
    out.set_code(static_cast<int32_t>(trace.code));
    out.set_stage_bytes(trace.stage_bytes);
    out.set_client_trace_id(BytesOf(trace.client.trace));
    out.set_client_span_id(BytesOf(trace.client.span));
    out.set_stands_for(trace.stands_for);
  }
  return message;
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
    *message.add_operations() = LineToProto(line);
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
    out.set_uid(line.uid);
    out.set_staging_bytes(line.staging_bytes);
    if (line.dropped_rows > 0) out.mutable_ranks()->set_dropped_rows(line.dropped_rows);
  }
  for (const ExchangeSnapshot::SessionLine& line : snapshot.sessions) {
    v1::WorkerSnapshot::Session& out = *message.add_sessions();
    out.set_session_id(line.session.value);
    out.set_num_operations(line.num_operations);
  }
  for (const ExchangeSnapshot::UseLine& line : snapshot.uses) {
    v1::WorkerSnapshot::Use& out = *message.add_uses();
    out.set_uid(line.uid);
    out.set_num_operations(line.num_operations);
    out.set_staging_bytes(line.staging_bytes);
  }
  for (size_t kind = 0; kind < snapshot.kinds.size(); ++kind) {
    v1::KindFigures figures = KindToProto(kind, snapshot.kinds[kind]);
    if (figures.outcomes_size() + figures.phases_size() > 0)
      *message.add_kinds() = std::move(figures);
  }
  for (const ExchangeSnapshot::SetLine& line : snapshot.sets) {
    *message.add_arena_sets() = SetToProto(line);
  }
  message.set_pool_bytes(snapshot.pool_bytes);
  message.set_pool_committed_bytes(snapshot.pool_committed_bytes);
  message.set_pool_peak_bytes(snapshot.pool_peak_bytes);
  return message;
}

std::vector<v1::FromWorker> SplitSnapshot(v1::WorkerSnapshot whole) {
  SnapshotParts parts(whole.request_id());
  parts.last().set_pool_bytes(whole.pool_bytes());
  parts.last().set_pool_committed_bytes(whole.pool_committed_bytes());
  parts.last().set_pool_peak_bytes(whole.pool_peak_bytes());
  parts.Add(*whole.mutable_operations(), &v1::WorkerSnapshot::mutable_operations);
  parts.Add(*whole.mutable_tenants(), &v1::WorkerSnapshot::mutable_tenants);
  parts.Add(*whole.mutable_arena_sets(), &v1::WorkerSnapshot::mutable_arena_sets);
  parts.Add(*whole.mutable_traffic(), &v1::WorkerSnapshot::mutable_traffic);
  parts.Add(*whole.mutable_kinds(), &v1::WorkerSnapshot::mutable_kinds);
  parts.Add(*whole.mutable_uses(), &v1::WorkerSnapshot::mutable_uses);
  parts.Add(*whole.mutable_sessions(), &v1::WorkerSnapshot::mutable_sessions);
  return parts.Take();
}

}  // namespace epd
