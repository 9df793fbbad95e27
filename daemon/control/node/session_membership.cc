#include "daemon/control/node/session_membership.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

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

void Merge(const std::vector<ExecutionCount>& counts, const std::vector<Rank>& ranks,
           DrainRecord& record) {
  for (const ExecutionCount& count : counts) {
    if (!absl::c_linear_search(ranks, count.rank)) continue;
    const auto same = absl::c_find_if(record.counts, [&](const ExecutionCount& c) {
      return c.rank == count.rank && c.program == count.program;
    });
    if (same == record.counts.end()) {
      record.counts.push_back(count);
    } else if (count.begun >= same->begun) {
      *same = count;
    }
  }
  absl::c_sort(record.counts);
}

}  // namespace epd
