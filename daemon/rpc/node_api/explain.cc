#include "daemon/rpc/node_api/explain.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {
namespace {

v1::RankAccount ToAccount(const RankPhase& rank) {
  v1::RankAccount out;
  PutHolder(rank.holder, out);
  out.set_client_version(rank.holder.client_version);
  out.set_phase(rank.phase);
  if (rank.last_seen >= absl::ZeroDuration()) *out.mutable_last_seen() = ToProto(rank.last_seen);
  return out;
}

std::string Named(const v1::Group& group, uint32_t rank) {
  for (const v1::Rank& one : group.ranks()) {
    if (one.rank() != rank || one.host().empty()) continue;
    return absl::StrCat("rank ", rank, " (node ", one.node(), ", host ", one.host(), ", pid ",
                        one.pid(), ", ", one.client_name(), ")");
  }
  return absl::StrCat("rank ", rank, " (nobody holds it)");
}

std::string FormatAge(const google::protobuf::Duration& age) {
  return absl::FormatDuration(absl::Trunc(FromProto(age), absl::Milliseconds(1)));
}

// "; the last that it did: ..." of the awaited rank, where its node keeps its past.
std::string DescribeLast(const v1::ExplainGroupResponse& out, uint32_t rank) {
  for (const v1::RankPast& past : out.past()) {
    if (past.rank() != rank || past.operations().empty()) continue;
    const v1::PastOperation& last = past.operations(0);
    return absl::StrCat("; the last that rank ", rank, " began is ", last.kind(), " ", last.key(),
                        ", ", FormatAge(last.age()), " ago, ", last.phase());
  }
  return absl::StrCat("; rank ", rank, " has begun nothing yet");
}

// Blames the rank that most open operations wait for; the oldest one is the evidence.
bool BlameAwaited(v1::ExplainGroupResponse& out) {
  std::map<uint32_t, size_t> votes;
  for (const v1::OpenOperation& operation : out.operations()) {
    for (const uint32_t rank : operation.waiting_for()) ++votes[rank];
  }
  if (votes.empty()) return false;
  const auto most =
      absl::c_max_element(votes, [](const auto& a, const auto& b) { return a.second < b.second; });
  const uint32_t rank = most->first;
  for (const v1::OpenOperation& operation : out.operations()) {
    const auto& late = operation.waiting_for();
    if (!absl::c_linear_search(late, rank)) continue;
    std::vector<uint32_t> waiting;
    for (const v1::Rank& one : out.group().ranks()) {
      if (!absl::c_linear_search(late, one.rank())) waiting.push_back(one.rank());
    }
    out.set_culprit(absl::StrCat("rank ", rank));
    out.set_evidence(absl::StrCat(
        Named(out.group(), rank), " has not done '", operation.phase(), "' of ", operation.kind(),
        " ", operation.key(), "; ranks ", absl::StrJoin(waiting, ", "), " wait for it since ",
        FormatAge(operation.age()), "; ", most->second, " of ", out.operations_size(),
        " open operations wait for it", DescribeLast(out, rank)));
    return true;
  }
  return false;
}

bool BlameAbsent(v1::ExplainGroupResponse& out) {
  if (!out.has_group() || out.group().state() == v1::GROUP_STATE_READY) return false;
  for (const std::string phase : {"dead", "missing", "not_drained", "worker_down", "arena"}) {
    for (const v1::Rank& rank : out.group().ranks()) {
      if (rank.phase() != phase) continue;
      out.set_culprit(absl::StrCat("rank ", rank.rank()));
      out.set_evidence(absl::StrCat(
          Named(out.group(), rank.rank()), " is ", phase, ", and the group is ",
          v1::GroupState_Name(out.group().state()), " since ", FormatAge(out.group().state_age()),
          out.group().has_last_error() ? absl::StrCat(": ", out.group().last_error().message())
                                       : ""));
      return true;
    }
  }
  return false;
}

}  // namespace

v1::FormationReport ToProto(const FormationReport& report) {
  v1::FormationReport out;
  out.set_group(report.name);
  out.set_epoch(report.epoch.value);
  out.set_state(static_cast<v1::GroupState>(static_cast<int>(report.state) + 1));
  *out.mutable_allowed() = ToProto(report.allowed);
  for (const RankPhase& rank : report.arrived) *out.add_arrived() = ToAccount(rank);
  for (const Rank rank : report.missing) {
    const auto last =
        absl::c_find_if(report.dead, [&](const auto& dead) { return dead.holder.rank == rank; });
    v1::RankAccount& account = *out.add_missing();
    if (last != report.dead.end()) account = ToAccount(*last);
    account.set_rank(rank.value);
    account.set_phase("missing");
  }
  for (const RankPhase& rank : report.dead) *out.add_dead() = ToAccount(rank);
  for (const RankPhase& rank : report.wrong) *out.add_wrong() = ToAccount(rank);
  if (!report.cause.ok()) *out.mutable_cause() = ToProto(report.cause);
  return out;
}

namespace {

void AddOpen(const Node& node, GroupId group, const WorkerSupervisor::Figures& figures,
             v1::LocalExplanation& out) {
  for (const v1::WorkerSnapshot::Operation& operation : figures.snapshot.operations()) {
    if (operation.group_id() != group.value) continue;
    v1::OpenOperation& added = *out.add_operations();
    added.set_node(node.id().value);
    added.set_kind(operation.kind());
    added.set_phase(operation.phase());
    added.set_key(operation.key());
    *added.mutable_age() =
        ToProto(FromProto(operation.age()) + (MonotonicNow() - figures.snapshot_at));
    *added.mutable_waiting_for() = operation.waiting_for();
  }
}

// All but the past.
v1::LocalExplanation ExplainPresent(const Node& node, const std::string& name) {
  v1::LocalExplanation out;
  out.set_node(node.id().value);
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.spec.name != name) continue;
    *out.mutable_group() = DescribeGroup(node, group);
    for (const auto& [worker, entry] : node.workers()) {
      AddOpen(node, group.id, entry->supervisor.figures(), out);
    }
  }
  const FormationReport* late =
      node.coordination().is_here() ? node.coordination().rendezvous().LastReport(name) : nullptr;
  if (late != nullptr) *out.mutable_last_late() = ToProto(*late);
  return out;
}

void AddPast(const Node& node, const std::string& tenant, const v1::WorkerPast& said,
             v1::LocalExplanation& out) {
  v1::RankPast* past = nullptr;
  for (const v1::WorkerPast::Operation& operation : said.operations()) {
    if (past == nullptr || past->rank() != operation.rank()) {
      past = out.add_past();
      past->set_rank(operation.rank());
      past->set_node(node.id().value);
      past->set_tenant(tenant);
    }
    v1::PastOperation& added = *past->add_operations();
    added.set_kind(operation.kind());
    added.set_key(operation.key());
    added.set_fingerprint(absl::StrFormat("%016x", operation.fingerprint()));
    added.set_phase(operation.phase());
    *added.mutable_age() = operation.age();
    added.set_code(operation.code());
  }
}

}  // namespace

uint32_t PastShown(uint32_t num_ranks) {
  // Some 100 bytes each: the answer of all nodes together stays below gRPC's limit of a message.
  constexpr uint32_t kMaxOfGroup = 16384;
  constexpr uint32_t kMaxOfRank = 64;
  constexpr uint32_t kMinOfRank = 4;
  return std::clamp(kMaxOfGroup / std::max(num_ranks, 1u), kMinOfRank, kMaxOfRank);
}

void ExplainLocally(Node& node, const std::string& name,
                    std::function<void(const v1::LocalExplanation&)> done) {
  node.WithFreshFigures([&node, name, done = std::move(done)] {
    std::map<GroupId, std::string> tenants;
    uint32_t num_ranks = 0;
    for (const GroupStatus& group : KnownGroups(node)) {
      if (group.spec.name != name) continue;
      tenants[group.id] = group.spec.tenant;
      num_ranks = group.spec.num_ranks;
    }
    std::vector<GroupId> ids;
    for (const auto& [id, unused] : tenants) ids.push_back(id);
    node.AskForPast(ids, PastShown(num_ranks),
                    [&node, name, tenants, done](const PastQuestions::Answers& answers) {
                      v1::LocalExplanation out = ExplainPresent(node, name);
                      for (const auto& [id, past] : answers) {
                        AddPast(node, tenants.at(id), past, out);
                      }
                      done(out);
                    });
  });
}

void Explain(const std::vector<v1::LocalExplanation>& nodes, v1::ExplainGroupResponse& out) {
  for (const v1::LocalExplanation& node : nodes) {
    if (node.has_group() && !out.has_group()) *out.mutable_group() = node.group();
    if (node.has_last_late()) *out.mutable_last_late() = node.last_late();
    for (const v1::OpenOperation& operation : node.operations()) *out.add_operations() = operation;
    for (const v1::RankPast& past : node.past()) *out.add_past() = past;
  }
  std::stable_sort(out.mutable_past()->begin(), out.mutable_past()->end(),
                   [](const v1::RankPast& a, const v1::RankPast& b) {
                     return std::pair(a.tenant(), a.rank()) < std::pair(b.tenant(), b.rank());
                   });
  std::stable_sort(out.mutable_operations()->begin(), out.mutable_operations()->end(),
                   [](const v1::OpenOperation& a, const v1::OpenOperation& b) {
                     return FromProto(a.age()) > FromProto(b.age());
                   });
  if (BlameAwaited(out) || BlameAbsent(out)) return;
  if (out.unanswered_size() > 0) {
    out.set_culprit(out.unanswered(0).substr(0, out.unanswered(0).find(':')));
    out.set_evidence(out.unanswered(0));
    return;
  }
  out.set_evidence("no open operation waits for anybody");
}

}  // namespace epd
