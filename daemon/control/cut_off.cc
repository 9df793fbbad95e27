#include "daemon/control/cut_off.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"

namespace epd {

std::vector<ExecutionBase> CutOff(const std::vector<ExecutionCount>& counts,
                                  const std::vector<ExecutionBase>& bases,
                                  const std::vector<Rank>& staying) {
  std::map<std::pair<Rank, ProgramId>, uint64_t> base_of;
  std::map<ProgramId, uint64_t> cut;
  for (const ExecutionBase& b : bases) {
    base_of[{b.rank, b.program}] = b.base;
    cut.try_emplace(b.program, 0);
  }
  for (const ExecutionCount& c : counts) {
    if (!absl::c_linear_search(staying, c.rank)) continue;
    const auto base = base_of.find({c.rank, c.program});
    const uint64_t old_base = base == base_of.end() ? 0 : base->second;
    uint64_t& highest = cut[c.program];
    if (c.begun > old_base) highest = std::max(highest, c.begun - old_base);
  }
  std::vector<ExecutionBase> out;
  for (const auto& [program, executions] : cut) {
    for (const Rank rank : staying) {
      const auto base = base_of.find({rank, program});
      const uint64_t next = (base == base_of.end() ? 0 : base->second) + executions;
      if (next != 0) out.push_back({rank, program, next});
    }
  }
  absl::c_sort(out);
  return out;
}

}  // namespace epd
