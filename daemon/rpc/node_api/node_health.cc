#include "daemon/rpc/node_api/node_health.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {
namespace {

// A question that is open for longer than a status waits for it.
constexpr absl::Duration kStaleAfter = absl::Milliseconds(250);
// A worker that is down for longer does not come back by itself in a moment.
constexpr absl::Duration kLongDown = absl::Seconds(10);

void Add(NodeHealth& to, v1::Health health, std::string problem) {
  to.health = std::max(to.health, health);
  to.problems.push_back(std::move(problem));
}

bool IsStale(const WorkerSupervisor& worker) {
  const WorkerSupervisor::Figures& figures = worker.figures();
  if (!worker.running()) return figures.snapshot_at != absl::InfinitePast();
  return MonotonicNow() > figures.asked_at + kStaleAfter;
}

// The others, and epd, go on without a GPU's.
void JudgeWorker(const Node& node, const WorkerEntry& entry, NodeHealth& to) {
  const WorkerSupervisor::Figures& figures = entry.supervisor.figures();
  const std::string worker =
      entry.name.on_gpu() ? absl::StrCat("the worker of ", ToString(entry.name)) : "the worker";
  const absl::Time now = MonotonicNow();
  if (figures.state == WorkerSupervisor::State::kRunning) {
    if (!IsStale(entry.supervisor)) return;
    return Add(to, v1::HEALTH_DEGRADED,
               absl::StrCat(
                   worker, " (pid ", figures.pid, ") has not answered for ",
                   absl::FormatDuration(absl::Trunc(now - figures.asked_at, absl::Milliseconds(1))),
                   "; it is replaced after ", absl::FormatDuration(node.settings().worker_stuck)));
  }
  const absl::Time up_at = std::max(figures.snapshot_at, node.identity().started);
  const bool unhealthy = now - up_at > kLongDown && !entry.name.on_gpu();
  const v1::Health health = unhealthy ? v1::HEALTH_UNHEALTHY : v1::HEALTH_DEGRADED;
  if (figures.last_exit.empty()) return Add(to, health, absl::StrCat(worker, " is starting"));
  Add(to, health,
      absl::StrCat(worker, " ended (", figures.last_exit, ") and is being replaced; start ",
                   figures.num_restarts + 1));
}

void JudgeGroup(const GroupStatus& group, NodeHealth& to) {
  if (group.state != GroupState::kDegraded && group.state != GroupState::kReforming) return;
  Add(to, v1::HEALTH_DEGRADED,
      absl::StrCat("group ", Title(group.spec), " is ", std::string(Name(group.state)), ": ",
                   group.cause.message()));
}

}  // namespace

bool FiguresAreStale(const Node& node) {
  return absl::c_any_of(node.workers(),
                        [](const auto& one) { return IsStale(one.second->supervisor); });
}

NodeHealth JudgeHealth(const Node& node) {
  NodeHealth judged;
  if (node.stopping()) Add(judged, v1::HEALTH_UNHEALTHY, "epd is stopping");
  for (const auto& [name, entry] : node.workers()) JudgeWorker(node, *entry, judged);
  if (!node.coordination().is_here() && !node.control().coordinator_connected()) {
    const std::string why =
        node.coordination().leader().empty()
            ? absl::StrCat("no coordinator: ", node.coordination().why_no_leader())
            : absl::StrCat("no connection to the coordinator ", node.coordination().leader());
    Add(judged, v1::HEALTH_DEGRADED,
        absl::StrCat(why, "; groups that are READY go on, no group can form"));
  }
  if (!node.coordination().store_problem().empty())
    Add(judged, v1::HEALTH_DEGRADED, node.coordination().store_problem());
  std::string certificate = CertificateProblem(node.certificates().state(), absl::Now());
  if (!certificate.empty()) Add(judged, v1::HEALTH_DEGRADED, std::move(certificate));
  for (const GroupStatus& group : KnownGroups(node)) JudgeGroup(group, judged);
  return judged;
}

}  // namespace epd
