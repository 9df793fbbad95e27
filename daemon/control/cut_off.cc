#include "daemon/control/cut_off.h"

#include <algorithm>
#include <map>
#include <utility>

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
    if (std::find(staying.begin(), staying.end(), c.rank) == staying.end()) continue;
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
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace epd
