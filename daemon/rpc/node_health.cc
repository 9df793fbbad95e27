#include "daemon/rpc/node_health.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/rpc/group_facts.h"

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

void JudgeWorker(const Node& node, NodeHealth& to) {
  const WorkerSupervisor::Figures& figures = node.worker().figures();
  const absl::Time now = MonotonicNow();
  if (figures.state == WorkerSupervisor::State::kRunning) {
    if (!FiguresAreStale(node)) return;
    return Add(to, v1::HEALTH_DEGRADED,
               absl::StrCat(
                   "the worker (pid ", figures.pid, ") has not answered for ",
                   absl::FormatDuration(absl::Trunc(now - figures.asked_at, absl::Milliseconds(1))),
                   "; it is replaced after ", absl::FormatDuration(node.settings().worker_stuck)));
  }
  const absl::Time up_at = std::max(figures.snapshot_at, node.started());
  const v1::Health health = now - up_at > kLongDown ? v1::HEALTH_UNHEALTHY : v1::HEALTH_DEGRADED;
  if (figures.last_exit.empty()) return Add(to, health, "the worker is starting");
  Add(to, health,
      absl::StrCat("the worker ended (", figures.last_exit, ") and is being replaced; start ",
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
  const WorkerSupervisor::Figures& figures = node.worker().figures();
  if (!node.worker().running()) return figures.snapshot_at != absl::InfinitePast();
  return MonotonicNow() > figures.asked_at + kStaleAfter;
}

NodeHealth JudgeHealth(const Node& node) {
  NodeHealth judged;
  if (node.stopping()) Add(judged, v1::HEALTH_UNHEALTHY, "epd is stopping");
  JudgeWorker(node, judged);
  if (!node.coordinates() && !node.control().coordinator_connected()) {
    const std::string why = node.leader().empty()
                                ? absl::StrCat("no coordinator: ", node.why_no_leader())
                                : absl::StrCat("no connection to the coordinator ", node.leader());
    Add(judged, v1::HEALTH_DEGRADED,
        absl::StrCat(why, "; groups that are READY go on, no group can form"));
  }
  if (!node.store_problem().empty()) Add(judged, v1::HEALTH_DEGRADED, node.store_problem());
  for (const GroupStatus& group : KnownGroups(node)) JudgeGroup(group, judged);
  return judged;
}

}  // namespace epd
