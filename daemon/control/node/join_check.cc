#include "daemon/control/node/join_check.h"

#include "absl/strings/str_cat.h"

namespace epd {

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

}  // namespace epd
