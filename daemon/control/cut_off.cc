#include "daemon/control/cut_off.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"

namespace epd {

std::vector<ExecutionBase> CutOff(const std::vector<ExecutionCount>& counts,
                                  const std::vector<ExecutionBase>& bases,
                                  const std::vector<Rank>& staying) {
  struct Begun {
    uint64_t base = 0;
    uint64_t begun = 0;
  };
  std::map<ProgramId, std::map<Rank, Begun>> programs;
  std::set<Rank> failed;
  for (const ExecutionBase& b : bases) {
    std::map<Rank, Begun>& ranks = programs[b.program];
    if (absl::c_linear_search(staying, b.rank)) ranks[b.rank].base = b.base;
  }
  for (const ExecutionCount& c : counts) {
    if (!absl::c_linear_search(staying, c.rank)) continue;
    programs[c.program][c.rank].begun = c.begun;
    if (c.failed) failed.insert(c.rank);
  }
  std::vector<ExecutionBase> out;
  for (auto& [program, ranks] : programs) {
    uint64_t furthest = 0;
    for (const auto& [rank, one] : ranks)
      furthest = std::max(furthest, one.begun - std::min(one.begun, one.base));
    for (const Rank rank : staying) {
      const Begun& one = ranks[rank];
      const bool knows =
          failed.contains(rank) || (one.begun >= one.base && one.begun - one.base == furthest);
      const uint64_t next = one.begun + (knows ? 0 : 1);
      if (next != 0) out.push_back({rank, program, next});
    }
  }
  absl::c_sort(out);
  return out;
}

}  // namespace epd
