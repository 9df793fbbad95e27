#include "daemon/core/rank_holder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

std::string ToString(const WorkerId& worker) {
  return absl::StrCat("node ", worker.node.value, " ", ToString(worker.name));
}

std::string Describe(const RankHolder& holder, const std::string& phase) {
  return absl::StrCat("rank=", holder.rank.value, " host=", holder.host, " pid=", holder.pid,
                      " phase=", phase);
}

std::string DescribeWorker(const WorkerId& worker, const std::vector<RankHolder>& members) {
  std::vector<Rank> ranks;
  std::string host;
  for (const RankHolder& member : members) {
    if (member.server() != worker) continue;
    ranks.push_back(member.rank);
    if (!member.host.empty()) host = absl::StrCat(" host=", member.host);
  }
  return absl::StrCat("the worker of ", ToString(worker), host, ", which serves ",
                      ranks.size() == 1 ? "rank=" : "ranks=", DescribeRanks(ranks), ",");
}

absl::Status WorkerGone(absl::string_view who, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(who, " is gone: ", why,
                                             "; call again: the group forms anew when it is back, "
                                             "or when others take its ranks [EPD-1302]"));
}

std::string DescribeRanks(std::vector<Rank> ranks) {
  if (ranks.empty()) return "none";
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string out;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1].value == ranks[last].value + 1) ++last;
    absl::StrAppend(&out, out.empty() ? "" : ", ", ranks[first].value);
    if (last > first) absl::StrAppend(&out, "-", ranks[last].value);
    first = last + 1;
  }
  return out;
}

}  // namespace epd
