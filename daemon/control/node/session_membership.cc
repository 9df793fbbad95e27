#include "daemon/control/node/session_membership.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "daemon/control/cut_off.h"

namespace epd {

std::string DescribeRanksOf(const Claim& claim, const std::string& phase) {
  std::string out;
  for (const Rank rank : claim.ranks) {
    RankHolder holder;
    holder.rank = rank;
    holder.host = claim.host;
    holder.pid = claim.pid;
    absl::StrAppend(&out, out.empty() ? "" : "; ", Describe(holder, phase));
  }
  return out;
}

absl::Status Merge(const std::vector<ExecutionCount>& counts, const Claim& claim,
                   DrainRecord& record) {
  const std::set<Rank> ranks(claim.ranks.begin(), claim.ranks.end());
  std::vector<ExecutionCount> all = std::exchange(record.counts, {});
  for (const ExecutionCount& count : counts) {
    // One that is 0 says no more than one that is not listed.
    if (count.begun > 0 && ranks.contains(count.rank)) all.push_back(count);
  }
  // Of each rank and program, as they came.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.program) < std::tie(b.rank, b.program);
  });
  for (const ExecutionCount& count : all) {
    ExecutionCount* const last = record.counts.empty() ? nullptr : &record.counts.back();
    if (last == nullptr || last->rank != count.rank || last->program != count.program) {
      record.counts.push_back(count);
    } else if (count.begun >= last->begun) {
      *last = count;
    }
  }
  if (record.counts.size() <= kMaxExecutionBases) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "group=", Title(claim.spec), " formation=", claim.joined.value, " rank=",
      claim.ranks.front().value, " host=", claim.host, " pid=", claim.pid, ": Drained makes ",
      record.counts.size(), " counts of programs, expected at most ", kMaxExecutionBases,
      " (kMaxExecutionBases), as many as the message that starts a group carries; start the "
      "process anew, or let it run fewer programs"));
}

}  // namespace epd
