#include "daemon/control/cut_off.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

struct Begun {
  uint64_t base = 0;
  uint64_t begun = 0;
};
using BegunByRank = std::map<Rank, Begun>;

// Of the ranks that have begun `program` or had a base of it; of the others, the ones in `unaware` are one call away if any
// rank has begun it.
void CutProgram(const ProgramId& program, const BegunByRank& ranks, const std::set<Rank>& unaware,
                std::vector<ExecutionBase>& out) {
  uint64_t furthest = 0;
  for (const auto& [rank, one] : ranks)
    furthest = std::max(furthest, one.begun - std::min(one.begun, one.base));
  for (const auto& [rank, one] : ranks) {
    const bool knows =
        !unaware.contains(rank) || (one.begun >= one.base && one.begun - one.base == furthest);
    const uint64_t next = one.begun + (knows ? 0 : 1);
    if (next != 0) out.push_back({rank, program, next});
  }
  if (furthest == 0) return;
  for (const Rank rank : unaware) {
    if (!ranks.contains(rank)) out.push_back({rank, program, 1});
  }
}

}  // namespace

absl::Status CheckNumBases(size_t num_bases, size_t num_ranks) {
  if (num_bases <= kMaxExecutionBases) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the programs that its ", num_ranks, " ranks have begun take at least ", num_bases,
      " counts of the message that starts it, expected at most ", kMaxExecutionBases,
      " (kMaxExecutionBases); start its processes anew, or let them run fewer programs"));
}

absl::StatusOr<std::vector<ExecutionBase>> CutOff(const std::vector<ExecutionCount>& counts,
                                                  const std::vector<ExecutionBase>& bases,
                                                  const std::vector<Rank>& staying) {
  const std::set<Rank> stay(staying.begin(), staying.end());
  std::set<Rank> unaware = stay;  // Their last calls did not fail.
  std::map<ProgramId, BegunByRank> programs;
  for (const ExecutionBase& b : bases) {
    if (stay.contains(b.rank)) programs[b.program][b.rank].base = b.base;
  }
  for (const ExecutionCount& c : counts) {
    if (!stay.contains(c.rank)) continue;
    programs[c.program][c.rank].begun = c.begun;
    if (c.failed) unaware.erase(c.rank);
  }
  std::vector<ExecutionBase> out;
  for (const auto& [program, ranks] : programs) {
    CutProgram(program, ranks, unaware, out);
    // A count may become as many bases as ranks stay: no further than it takes to refuse them.
    if (absl::Status few = CheckNumBases(out.size(), stay.size()); !few.ok()) return few;
  }
  absl::c_sort(out);
  return out;
}

}  // namespace epd
