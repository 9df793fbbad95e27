// Deadlines: who is late is named, then the generation ends; who holds on too long loses its
// session.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/crossed_order.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/program_divergence.h"

namespace epd {
namespace {

// Between two looks at an operation that gathers; a warn_after below it is obeyed once.
constexpr absl::Duration kShortestLook = absl::Seconds(1);

}  // namespace

void Exchange::SetDeadline(Operation& operation, absl::Time deadline) {
  if (operation.deadline != absl::InfiniteFuture()) {
    deadlines_.erase({operation.deadline, operation.id});
  }
  operation.deadline = deadline;
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, operation.id);
}

absl::Time Exchange::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

void Exchange::Tick(absl::Time now) {
  now_ = now;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    OnDeadline(*operations_.at(deadlines_.begin()->second), now);
  }
  FinishEvent(now);
}

void Exchange::OnDeadline(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  const absl::Duration age = now - operation.phase_since;
  // The leader had its time to say what became of the operation.
  if (operation.undecided() && !tenant.ended.ok()) return FailOperation(operation, tenant.ended);
  switch (operation.phase) {
    case Phase::kGathering:
      OnGatheringDeadline(operation, now);
      return;
    case Phase::kQueued:
      FailWithExecution(
          operation,
          absl::ResourceExhaustedError(absl::StrCat(
              "no staging became free in ", absl::FormatDuration(age), " for ",
              operation.staging_bytes, " bytes on each of ", operation.parts.size(),
              " ranks; start epd with a larger staging pool, or run less at the same time")));
      return;
    case Phase::kAdmitted:
      EndGeneration(tenant, absl::DeadlineExceededError(absl::StrCat(
                                operation.Describe(), " was admitted ", absl::FormatDuration(age),
                                " ago and is not published by ",
                                NameRanks(tenant, operation.WaitingFor(), "publish"),
                                "; look at these processes, or raise the undecided deadline")));
      return;
    case Phase::kMoving:
      EndGeneration(tenant,
                    absl::DeadlineExceededError(absl::StrCat(
                        "the worker has not moved the rows of ", operation.Describe(), " in ",
                        absl::FormatDuration(age), "; raise the undecided deadline")));
      return;
    case Phase::kGood:
    case Phase::kFailed:
      EvictHolders(operation);
      return;
  }
}

void Exchange::OnGatheringDeadline(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  const absl::Duration limit =
      tenant.start.spec.deadlines.absent + (tenant.leads() ? absl::ZeroDuration() : kLeaderFirst);
  const absl::Duration age = now - operation.first_announce;
  if (age >= limit) {
    EndGeneration(tenant, absl::DeadlineExceededError(absl::StrCat(
                              operation.Describe(), " waits ", absl::FormatDuration(age), " for ",
                              NameRanks(tenant, operation.WaitingFor(), "absent"),
                              "; look at these processes, or raise the absent deadline")));
    return;
  }
  const absl::Duration warn_after = tenant.start.spec.deadlines.warn_after;
  const std::vector<Operation*> undecided = UndecidedOf(tenant);
  if (absl::Status apart = CheckDivergence(undecided, tenant, now - warn_after); !apart.ok()) {
    EndDivergedGeneration(tenant, apart);
    return;
  }
  if (!std::exchange(operation.warned, true)) WarnOfAbsent(operation, undecided, age);
  SetDeadline(operation, std::min(operation.first_announce + limit,
                                  now + std::max(warn_after, kShortestLook)));
}

void Exchange::WarnOfAbsent(const Operation& operation, const std::vector<Operation*>& undecided,
                            absl::Duration age) {
  const Tenant& tenant = *operation.tenant;
  std::string text =
      absl::StrCat("group=", Title(tenant.start.spec), " epoch=", tenant.start.epoch.value,
                   " phase=announce: ", operation.Describe(), " waits ", absl::FormatDuration(age),
                   " for ", NameRanks(tenant, operation.WaitingFor(), "absent"));
  if (const Operation* other = FindCrossed(operation, undecided); other != nullptr) {
    absl::StrAppend(&text, "; crossed order: ", other->Describe(),
                    " waits for ranks that have "
                    "announced this one, and this one for ranks that have announced it; launch "
                    "programs in one order on all ranks, or give the calls names");
  }
  effects_.push_back(LogLine{.severity = Severity::kWarning, .text = std::move(text)});
  // So that the leader names those alone who are missing.
  if (!operation.tenant->leads()) TellAnnounced(operation, now_);
}

void Exchange::EvictHolders(Operation& operation) {
  SetDeadline(operation, absl::InfiniteFuture());
  const Tenant& tenant = *operation.tenant;
  for (Rank rank : operation.WaitingFor()) {
    effects_.push_back(EvictSession{
        .session = tenant.start.members[rank.value].session,
        .cause = absl::DeadlineExceededError(absl::StrCat(
            "group=", Title(tenant.start.spec), " epoch=", tenant.start.epoch.value, " ",
            NameRanks(tenant, {rank}, "pulled"), ": holds the staging of ", operation.Describe(),
            " ", absl::FormatDuration(options_.hold_limit),
            " after the operation ended; the session ends so that others can use it"))});
  }
}

}  // namespace epd
