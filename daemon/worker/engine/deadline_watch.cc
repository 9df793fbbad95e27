#include "daemon/worker/engine/deadline_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/duration_text.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/program_divergence.h"

namespace epd {
namespace {

// Between two looks at an operation that gathers; a warn_after below it is obeyed once.
constexpr absl::Duration kShortestLook = absl::Seconds(1);
// Between two comparisons of all of a tenant's operations with each other, whatever its warn_after and however many are due.
constexpr absl::Duration kShortestComparison = absl::Milliseconds(100);
// Operations of a tenant that are named in the log until the next comparison.
constexpr int kWarnedAtOnce = 8;

// What one that gathers waits for: ranks, rows that go ahead, or other workers' word that they have them.
std::string NameAwaited(const Operation& operation) {
  const std::vector<Rank> ranks = operation.WaitingFor();
  const auto name = [&](const char* phase) { return NameRanks(*operation.tenant, ranks, phase); };
  if (operation.Any(PartState::kAbsent) || ranks.empty()) return name("absent");
  if (!operation.peers.ahead.landed.contains(ranks[0]))
    return absl::StrCat("rows of ", name("publish"));
  return absl::StrCat("word that all rows are at the worker of ", name("publish"),
                      ", whose log says whose are not");
}

}  // namespace

void DeadlineWatch::Tick() {
  while (Operation* due = table_.FindDue(event_.now)) HandleDeadline(*due);
}

void DeadlineWatch::HandleDeadline(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  const absl::Duration age = event_.now - operation.phase_since;
  // The leader had its time to say what became of the operation.
  if (operation.undecided() && !tenant.ended.ok()) return phases_.Fail(operation, tenant.ended);
  switch (operation.phase) {
    case Phase::kGathering:
      LookAtGathering(operation);
      return;
    case Phase::kQueued:
      failures_.FailWithExecution(
          operation, absl::ResourceExhaustedError(absl::StrCat(
                         "no staging became free in ", InMilliseconds(age), " for ",
                         operation.staging_bytes, " bytes on each of ", operation.parts.size(),
                         " ranks; ", queue_.WhyItWaits(operation).message(), " [EPD-1103]")));
      return;
    case Phase::kAdmitted:
      failures_.EndGeneration(
          tenant,
          absl::DeadlineExceededError(absl::StrCat(
              operation.Describe(), " was admitted ", InMilliseconds(age),
              " ago and is not published by ", NameRanks(tenant, operation.WaitingFor(), "publish"),
              "; look at these processes, or raise the undecided deadline, and where it is higher "
              "the node's max_undecided [EPD-1203]")));
      return;
    case Phase::kMoving:
      failures_.EndGeneration(
          tenant,
          absl::DeadlineExceededError(absl::StrCat(
              "the worker has not moved the rows of ", operation.Describe(), " in ",
              InMilliseconds(age),
              "; raise the undecided deadline, and where it is higher the node's max_undecided")));
      return;
    case Phase::kGood:
    case Phase::kFailed:
      phases_.EvictHolders(operation);
      return;
  }
}

void DeadlineWatch::LookAtGathering(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  const absl::Duration limit =
      tenant.start.spec.deadlines.absent + (tenant.leads() ? absl::ZeroDuration() : kLeaderFirst);
  const absl::Duration age = event_.now - operation.first_announce;
  if (age >= limit) {
    failures_.EndGeneration(
        tenant,
        absl::DeadlineExceededError(absl::StrCat(
            operation.Describe(), " waits ", InMilliseconds(age), " for ", NameAwaited(operation),
            "; look at these processes, or raise the absent deadline [EPD-1202]")));
    return;
  }
  const absl::Duration warn_after = tenant.start.spec.deadlines.warn_after;
  absl::Time next = event_.now + std::max(warn_after, kShortestLook);
  if (event_.now >= tenant.looked + kShortestComparison) {
    tenant.looked = event_.now;
    tenant.num_warned = 0;
    absl::Status diverged =
        CheckDivergence(table_.FindUndecided(tenant), tenant, event_.now - warn_after);
    if (!diverged.ok()) return failures_.EndDivergedGeneration(tenant, diverged);
  } else if (event_.now > tenant.looked) {
    next = tenant.looked + kShortestComparison;  // It was not compared with the others.
  }
  if (!std::exchange(operation.warned, true)) {
    if (tenant.num_warned++ < kWarnedAtOnce) WarnOfAbsent(operation, age);
    // So that the leader names those alone who are missing.
    if (!tenant.leads()) leader_.TellAnnounced(operation);
  }
  table_.SetDeadline(operation, std::min(operation.first_announce + limit, next));
}

void DeadlineWatch::WarnOfAbsent(const Operation& operation, absl::Duration age) {
  const Tenant& tenant = *operation.tenant;
  std::string text =
      absl::StrCat("group=", Title(tenant.start.spec), " epoch=", tenant.start.epoch.value,
                   " phase=announce: ", operation.Describe(), " waits ", InMilliseconds(age),
                   " for ", NameAwaited(operation));
  if (const Operation* other = FindCrossed(operation, table_.FindUndecided(tenant));
      other != nullptr) {
    absl::StrAppend(&text, "; crossed order: ", other->Describe(),
                    " waits for ranks that have "
                    "announced this one, and this one for ranks that have announced it; launch "
                    "programs in one order on all ranks, or give the calls names");
  }
  event_.Add(LogLine{.severity = Severity::kWarning, .text = std::move(text)});
}

}  // namespace epd
