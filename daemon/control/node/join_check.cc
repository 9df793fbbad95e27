#include "daemon/control/node/join_check.h"

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Each Join that waits is in every report.
constexpr size_t kMaxWaiting = 64;

}  // namespace

absl::Status CheckJoin(const JoinRequested& event, const LocalWorkers& workers) {
  if (absl::Status status = Validate(event.spec); !status.ok()) return status;
  const std::string group = absl::StrCat("group=", Title(event.spec));
  if (event.ranks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, ": Join names no rank, expected at least one"));
  }
  if (event.workers.size() != 1 && event.workers.size() != event.ranks.size()) {
    return absl::InternalError(absl::StrCat(group, ": Join names ", event.ranks.size(),
                                            " ranks and ", event.workers.size(), " workers"));
  }
  for (const WorkerName& worker : event.workers) {
    if (workers.Has(worker)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(group, ": this node has no worker ", ToString(worker), "; see epctl status"));
  }
  std::set<Rank> seen;
  for (const Rank rank : event.ranks) {
    if (rank.value >= event.spec.num_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          group, " rank=", rank.value, ": expected a rank below num_ranks=", event.spec.num_ranks));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(group, " rank=", rank.value, ": named twice in one Join"));
    }
  }
  if (event.deadline == absl::InfiniteFuture())
    return absl::InvalidArgumentError(absl::StrCat(group, ": Join has no deadline"));
  return absl::OkStatus();
}

absl::Status CheckSession(const JoinRequested& event, const std::vector<SessionMembership*>& held) {
  size_t num_waiting = 0;
  for (const SessionMembership* member : held) {
    if (member->state == MembershipState::kWaiting) ++num_waiting;
    if (member->claim.request == event.request)
      return absl::InvalidArgumentError("a request id was used twice");
    if (member->claim.spec.name == event.spec.name) {
      return absl::AlreadyExistsError(absl::StrCat(
          "group=", Title(event.spec), ": this session has joined it as ranks ",
          DescribeRanks(member->claim.ranks), "; name all ranks in one Join, or leave first"));
    }
  }
  if (num_waiting >= kMaxWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "group=", Title(event.spec), " ranks ", DescribeRanks(event.ranks), ": this session has ",
        num_waiting, " Joins that wait for other ranks, expected fewer than ", kMaxWaiting,
        "; join again once one of them is answered"));
  }
  return absl::OkStatus();
}

}  // namespace epd
