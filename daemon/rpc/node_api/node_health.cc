#include "daemon/rpc/node_api/node_health.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {
namespace {

bool IsStale(const WorkerSupervisor& worker) {
  const WorkerSupervisor::Figures& figures = worker.figures();
  if (!worker.running()) return figures.snapshot_at != absl::InfinitePast();
  return MonotonicNow() > figures.asked_at + kStaleAfter;
}

HealthFacts::Worker FactsOf(const Node& node, const WorkerEntry& entry) {
  const WorkerSupervisor::Figures& figures = entry.supervisor.figures();
  const absl::Time now = MonotonicNow();
  return {.name = entry.name.on_gpu() ? absl::StrCat("the worker of ", ToString(entry.name))
                                      : "the worker",
          .on_gpu = entry.name.on_gpu(),
          .pid = figures.pid,
          .running = entry.supervisor.running(),
          .silent = figures.silent,
          .waits_for = WaitsFor(figures),
          .unanswered = std::max(now - figures.asked_at, absl::ZeroDuration()),
          .down = now - std::max(figures.snapshot_at, node.identity().started),
          .last_exit = figures.last_exit,
          .num_restarts = figures.num_restarts};
}

// Without the groups.
HealthFacts FactsOf(const Node& node) {
  const Coordination& coordination = node.coordination();
  HealthFacts facts;
  facts.stopping = node.stopping();
  facts.worker_stuck = node.settings().worker_stuck;
  facts.store_problem = coordination.store_problem();
  facts.certificate_problem = CertificateProblem(node.certificates().state(), absl::Now());
  facts.socket_problem = node.socket_problem();
  for (const auto& [name, entry] : node.workers()) facts.workers.push_back(FactsOf(node, *entry));
  if (!coordination.is_here() && !node.control().coordinator_connected()) {
    facts.no_coordinator =
        coordination.leader().empty()
            ? absl::StrCat("no coordinator: ", coordination.why_no_leader())
            : absl::StrCat("no connection to the coordinator ", coordination.leader());
    // Said once: as the cause.
    if (coordination.leader().empty() && !facts.store_problem.empty())
      absl::StrAppend(&facts.no_coordinator, ": ", std::exchange(facts.store_problem, ""));
  }
  return facts;
}

// By name and tenant: those that a silent worker of this node serves.
std::set<std::pair<std::string, std::string>> StalledGroups(const Node& node) {
  std::set<std::pair<std::string, std::string>> stalled;
  const auto is_silent = [&](const WorkerName& name) {
    const auto entry = node.workers().find(name);
    return entry != node.workers().end() && entry->second->supervisor.figures().silent;
  };
  if (absl::c_none_of(node.workers(), [&](const auto& one) { return is_silent(one.first); }))
    return stalled;
  for (const LocalGroupStatus& group : node.control().Groups()) {
    if (absl::c_any_of(group.workers, is_silent))
      stalled.emplace(group.view.spec.name, group.view.spec.tenant);
  }
  return stalled;
}

}  // namespace

bool FiguresAreStale(const Node& node) {
  return absl::c_any_of(node.workers(),
                        [](const auto& one) { return IsStale(one.second->supervisor); });
}

NodeHealth JudgeHealth(const Node& node) {
  HealthFacts facts = FactsOf(node);
  for (const GroupStatus& group : KnownGroups(node))
    facts.groups.push_back({.name = group.spec.name,
                            .tenant = group.spec.tenant,
                            .state = group.state,
                            .cause = group.cause});
  return Judge(facts);
}

std::map<std::string, bool> ServingByService(const Node& node) {
  HealthFacts facts = FactsOf(node);
  const auto stalled = StalledGroups(node);
  for (const GroupSummary& group : KnownSummaries(node)) {
    facts.groups.push_back({.name = group.name,
                            .tenant = group.tenant,
                            .state = group.state,
                            .stalled = stalled.count({group.name, group.tenant}) > 0});
  }
  return ServingByService(facts);
}

}  // namespace epd
