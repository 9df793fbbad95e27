#include "daemon/rpc/node_api/health_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/duration_text.h"

namespace epd {
namespace {

// A worker that is down for longer does not come back by itself in a moment.
constexpr absl::Duration kLongDown = absl::Seconds(10);

void Add(NodeHealth& to, v1::Health health, std::string problem) {
  to.health = std::max(to.health, health);
  to.problems.push_back(std::move(problem));
}

// The others, and epd, go on without a GPU's.
void JudgeWorker(const HealthFacts& facts, const HealthFacts::Worker& worker, NodeHealth& to) {
  const bool lost = worker.running ? worker.silent : worker.down > kLongDown;
  const v1::Health health = lost && !worker.on_gpu ? v1::HEALTH_UNHEALTHY : v1::HEALTH_DEGRADED;
  if (worker.running) {
    if (!worker.silent && worker.unanswered <= kStaleAfter) return;
    return Add(to, health,
               absl::StrCat(worker.name, " (pid ", worker.pid, ") has not answered for ",
                            InMilliseconds(worker.unanswered),
                            worker.waits_for.empty() ? "" : "; it waits in the kernel for ",
                            worker.waits_for, "; it is replaced after ",
                            absl::FormatDuration(facts.worker_stuck)));
  }
  if (worker.last_exit.empty()) return Add(to, health, absl::StrCat(worker.name, " is starting"));
  Add(to, health,
      absl::StrCat(worker.name, " ended (", worker.last_exit, ") and is being replaced; start ",
                   worker.num_restarts + 1));
}

void JudgeGroup(const HealthFacts::Group& group, NodeHealth& to) {
  if (group.state != GroupState::kDegraded && group.state != GroupState::kReforming) return;
  Add(to, v1::HEALTH_DEGRADED,
      absl::StrCat("group ", group.name, group.tenant.empty() ? "" : " tenant=", group.tenant,
                   " is ", std::string(Name(group.state)), ": ", group.cause.message()));
}

}  // namespace

NodeHealth Judge(const HealthFacts& facts) {
  NodeHealth judged;
  if (facts.stopping) Add(judged, v1::HEALTH_UNHEALTHY, "epd is stopping");
  for (const HealthFacts::Worker& worker : facts.workers) JudgeWorker(facts, worker, judged);
  if (!facts.no_coordinator.empty()) {
    Add(judged, v1::HEALTH_DEGRADED,
        absl::StrCat(facts.no_coordinator,
                     "; groups whose nodes reach each other go on, no group can form"));
  }
  if (!facts.store_problem.empty()) Add(judged, v1::HEALTH_DEGRADED, facts.store_problem);
  if (!facts.certificate_problem.empty())
    Add(judged, v1::HEALTH_DEGRADED, facts.certificate_problem);
  if (!facts.socket_problem.empty()) Add(judged, v1::HEALTH_DEGRADED, facts.socket_problem);
  for (const HealthFacts::Group& group : facts.groups) JudgeGroup(group, judged);
  return judged;
}

std::map<std::string, bool> ServingByService(const HealthFacts& facts) {
  const bool serves = Judge(facts).health != v1::HEALTH_UNHEALTHY;
  std::map<std::string, bool> serving = {{"", serves}, {"epd.v1.Node", serves}};
  std::map<std::string, bool> any;
  for (const HealthFacts::Group& group : facts.groups) {
    const std::string service = absl::StrCat("epd.group/", group.name);
    const bool served = group.state == GroupState::kReady && !group.stalled;
    any[service] = any[service] || served;
    // One that ends and its successor may be there at the same time.
    bool& said = serving[group.tenant.empty() ? service : absl::StrCat(service, "/", group.tenant)];
    said = said || served;
  }
  for (const auto& [service, served] : any) serving.emplace(service, served);
  return serving;
}

}  // namespace epd
