#include "daemon/rpc/node_api/explain.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/codec/codec.h"
#include "daemon/core/duration_text.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {
namespace {

// Ranks that exchange wait for each other all the time; nobody is to blame for less.
constexpr absl::Duration kLongWait = absl::Seconds(1);

v1::RankAccount ToAccount(const RankPhase& rank) {
  v1::RankAccount out;
  PutHolder(rank.holder, out);
  out.set_client_version(rank.holder.client_version);
  out.set_phase(rank.phase);
  if (rank.last_seen >= absl::ZeroDuration()) *out.mutable_last_seen() = ToProto(rank.last_seen);
  return out;
}

std::string FormatAge(const google::protobuf::Duration& age) {
  return InMilliseconds(FromProto(age));
}

const std::string& TenantOf(const v1::Group& group) { return group.spec().tenant(); }

// "rank 3", "rank 3 of tenant b".
std::string Titled(const v1::Group& group, uint32_t rank) {
  const std::string& tenant = TenantOf(group);
  return absl::StrCat("rank ", rank, tenant.empty() ? "" : absl::StrCat(" of tenant ", tenant));
}

std::string Named(const v1::Group& group, uint32_t rank) {
  for (const v1::Rank& one : group.ranks()) {
    if (one.rank() != rank || one.host().empty()) continue;
    return absl::StrCat(Titled(group, rank), " (node ", one.node(), ", host ", one.host(), ", pid ",
                        one.pid(), ", ", one.client_name(), ")");
  }
  return absl::StrCat(Titled(group, rank), " (nobody holds it)");
}

// "; the last that it did: ..." of the awaited rank, where its node keeps its past.
std::string DescribeLast(const v1::ExplainGroupResponse& out, const std::string& tenant,
                         uint32_t rank) {
  for (const v1::RankPast& past : out.past()) {
    if (past.rank() != rank || past.tenant() != tenant || past.operations().empty()) continue;
    const v1::PastOperation& last = past.operations(0);
    return absl::StrCat("; the last that rank ", rank, " began is ", last.kind(), " ", last.key(),
                        ", ", FormatAge(last.age()), " ago, ", last.phase());
  }
  return absl::StrCat("; rank ", rank, " has begun nothing yet");
}

// What a stopped worker serves waits for it alone, whatever else it looks like.
bool BlameSilentWorker(v1::ExplainGroupResponse& out) {
  for (const v1::SilentWorker& worker : out.silent_workers()) {
    if (FromProto(worker.silence()) < kLongWait) continue;
    out.set_culprit(absl::StrCat("worker ", worker.node(), " ", worker.device()));
    out.set_evidence(absl::StrCat("the ", worker.device(), " worker of node ", worker.node(),
                                  " (pid ", worker.pid(), ") has not answered for ",
                                  FormatAge(worker.silence()),
                                  worker.waits_for().empty() ? "" : "; it waits in the kernel for ",
                                  worker.waits_for(), "; the ranks' processes wait for it"));
    return true;
  }
  return false;
}

// Blames the rank that most of the operations wait for that are open for long; the oldest one is the evidence.
bool BlameAwaited(v1::ExplainGroupResponse& out) {
  std::map<std::pair<std::string, uint32_t>, size_t> votes;
  size_t num_long = 0;
  for (const v1::OpenOperation& operation : out.operations()) {
    if (FromProto(operation.age()) < kLongWait) continue;
    ++num_long;
    for (const uint32_t rank : operation.waiting_for()) ++votes[{operation.tenant(), rank}];
  }
  if (votes.empty()) return false;
  const auto most =
      absl::c_max_element(votes, [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::string& tenant = most->first.first;
  const uint32_t rank = most->first.second;
  const auto group =
      absl::c_find_if(out.tenants(), [&](const v1::Group& one) { return TenantOf(one) == tenant; });
  if (group == out.tenants().end()) return false;
  for (const v1::OpenOperation& operation : out.operations()) {
    const auto& late = operation.waiting_for();
    if (operation.tenant() != tenant || !absl::c_linear_search(late, rank)) continue;
    std::vector<uint32_t> waiting;
    for (const v1::Rank& one : group->ranks()) {
      if (!absl::c_linear_search(late, one.rank())) waiting.push_back(one.rank());
    }
    *out.mutable_group() = *group;
    out.set_culprit(Titled(*group, rank));
    out.set_evidence(absl::StrCat(
        Named(*group, rank), " has not done '", operation.phase(), "' of ", operation.kind(), " ",
        operation.key(), "; rank", waiting.size() == 1 ? " " : "s ", absl::StrJoin(waiting, ", "),
        waiting.size() == 1 ? " waits" : " wait", " for it since ", FormatAge(operation.age()),
        "; ", most->second, " of ", num_long, " open operations ",
        most->second == 1 ? "waits" : "wait", " for it", DescribeLast(out, tenant, rank)));
    return true;
  }
  return false;
}

bool BlameAbsentOf(const v1::Group& group, v1::ExplainGroupResponse& out) {
  if (group.state() == v1::GROUP_STATE_READY) return false;
  for (const std::string phase : {"dead", "missing", "not_drained", "worker_down", "arena"}) {
    for (const v1::Rank& rank : group.ranks()) {
      if (rank.phase() != phase) continue;
      out.set_culprit(Titled(group, rank.rank()));
      out.set_evidence(absl::StrCat(
          Named(group, rank.rank()), " is ", phase, ", and the group is ",
          v1::GroupState_Name(group.state()), " since ", FormatAge(group.state_age()),
          group.has_last_error() ? absl::StrCat(": ", group.last_error().message()) : ""));
      *out.mutable_group() = v1::Group(group);
      return true;
    }
  }
  return false;
}

bool BlameAbsent(v1::ExplainGroupResponse& out) {
  return absl::c_any_of(out.tenants(),
                        [&](const v1::Group& group) { return BlameAbsentOf(group, out); });
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

// Since `asked`, so that nothing is told of what a worker knew before it stopped or died.
void AddOpen(const Node& node, const GroupStatus& group, absl::Time asked,
             v1::LocalExplanation& out) {
  for (const auto& [name, entry] : node.workers()) {
    const WorkerSupervisor::Figures& figures = entry->supervisor.figures();
    if (!entry->supervisor.running() || figures.snapshot_at < asked) continue;
    for (const v1::WorkerSnapshot::Operation& operation : figures.snapshot.operations()) {
      if (operation.group_id() != group.id.value) continue;
      v1::OpenOperation& added = *out.add_operations();
      added.set_node(node.id().value);
      added.set_tenant(group.spec.tenant);
      added.set_kind(operation.kind());
      added.set_phase(operation.phase());
      added.set_key(operation.key());
      *added.mutable_age() =
          ToProto(FromProto(operation.age()) + (MonotonicNow() - figures.snapshot_at));
      *added.mutable_waiting_for() = operation.waiting_for();
    }
  }
}

void AddSilentWorkers(const Node& node, const std::string& name, absl::Time asked,
                      v1::LocalExplanation& out) {
  std::map<WorkerName, std::vector<std::string>> tenants;
  for (const LocalGroupStatus& local : node.control().Groups()) {
    if (local.view.spec.name != name) continue;
    for (const WorkerName& worker : local.workers)
      tenants[worker].push_back(local.view.spec.tenant);
  }
  for (const auto& [worker, entry] : node.workers()) {
    const WorkerSupervisor::Figures& figures = entry->supervisor.figures();
    const auto serves = tenants.find(worker);
    if (serves == tenants.end() || !entry->supervisor.running() || figures.asked_at > asked)
      continue;
    v1::SilentWorker& added = *out.add_silent_workers();
    added.set_node(node.id().value);
    added.set_device(ToString(worker));
    added.set_pid(figures.pid);
    *added.mutable_silence() = ToProto(MonotonicNow() - figures.asked_at);
    added.set_waits_for(WaitsFor(figures));
    for (const std::string& tenant : serves->second) added.add_tenants(tenant);
  }
}

// All but the past, by figures that were asked for at `asked`.
v1::LocalExplanation ExplainPresent(const Node& node, const std::string& name, absl::Time asked) {
  v1::LocalExplanation out;
  out.set_node(node.id().value);
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.spec.name != name) continue;
    *out.add_tenants() = DescribeGroup(node, group);
    AddOpen(node, group, asked, out);
  }
  if (out.tenants_size() > 0) *out.mutable_group() = out.tenants(0);
  AddSilentWorkers(node, name, asked, out);
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
  const absl::Time asked = MonotonicNow();
  node.WithFreshFigures([&node, name, asked, done = std::move(done)] {
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
                    [&node, name, asked, tenants, done](const PastQuestions::Answers& answers) {
                      v1::LocalExplanation out = ExplainPresent(node, name, asked);
                      for (const auto& [id, past] : answers) {
                        AddPast(node, tenants.at(id), past, out);
                      }
                      done(out);
                    });
  });
}

namespace {

bool Has(const v1::ExplainGroupResponse& out, const std::string& tenant) {
  return absl::c_any_of(out.tenants(),
                        [&](const v1::Group& group) { return TenantOf(group) == tenant; });
}

}  // namespace

void Explain(const std::vector<v1::LocalExplanation>& nodes,
             const std::optional<std::string>& tenant, v1::ExplainGroupResponse& out) {
  const auto asked_for = [&](const std::string& one) { return !tenant || *tenant == one; };
  for (const v1::LocalExplanation& node : nodes) {
    for (const v1::Group& group : node.tenants()) {
      if (asked_for(TenantOf(group)) && !Has(out, TenantOf(group))) *out.add_tenants() = group;
    }
    if (node.tenants().empty() && node.has_group() && !Has(out, ""))
      *out.add_tenants() = node.group();
    if (node.has_last_late()) *out.mutable_last_late() = node.last_late();
    for (const v1::OpenOperation& operation : node.operations()) {
      if (asked_for(operation.tenant())) *out.add_operations() = operation;
    }
    for (const v1::RankPast& past : node.past()) {
      if (asked_for(past.tenant())) *out.add_past() = past;
    }
    for (const v1::SilentWorker& worker : node.silent_workers()) {
      if (absl::c_any_of(worker.tenants(), asked_for)) *out.add_silent_workers() = worker;
    }
  }
  if (out.tenants_size() > 0) *out.mutable_group() = out.tenants(0);
  std::stable_sort(out.mutable_past()->begin(), out.mutable_past()->end(),
                   [](const v1::RankPast& a, const v1::RankPast& b) {
                     return std::pair(a.tenant(), a.rank()) < std::pair(b.tenant(), b.rank());
                   });
  std::stable_sort(out.mutable_operations()->begin(), out.mutable_operations()->end(),
                   [](const v1::OpenOperation& a, const v1::OpenOperation& b) {
                     return FromProto(a.age()) > FromProto(b.age());
                   });
  if (BlameSilentWorker(out) || BlameAwaited(out) || BlameAbsent(out)) return;
  if (out.unanswered_size() > 0) {
    out.set_culprit(out.unanswered(0).substr(0, out.unanswered(0).find(':')));
    out.set_evidence(out.unanswered(0));
    return;
  }
  out.set_evidence(absl::StrCat("no open operation waits for anybody for longer than ",
                                absl::FormatDuration(kLongWait)));
}

}  // namespace epd
