#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

// Sets of ranks that have a column; more would not fit.
constexpr size_t kMaxColumns = 3;
constexpr size_t kMaxRanksShown = 8;
constexpr size_t kMaxCallShown = 22;
constexpr size_t kDigitsShown = 8;
// The daemon keeps at least so many of each rank.
constexpr int kFewestKept = 4;
// Of operations that went well everywhere, as an example of what is usual.
constexpr size_t kWellShown = 3;

// One operation as all ranks see it.
struct Line {
  const epd::v1::PastOperation* first = nullptr;  // Of the rank that announced it first.
  absl::Duration age;                             // Since then.
  std::set<std::string> fingerprints;
  std::map<uint32_t, std::string> phases;  // By rank; those that have begun it.
};

// "program=1a2b execution=7 ordinal=1 occurrence=0" -> "1a2b 7.1.0"; where the program says what its users call the place, that:
// "program=1a2b scope=layer_3 execution=..." -> "layer_3 7.1.0".
std::string ShortCall(const std::string& key) {
  constexpr char kScope[] = " scope=";
  const size_t scope = key.find(kScope);
  const bool has_scope = absl::StartsWith(key, "program=") && scope != std::string::npos;
  const std::string text = absl::StrReplaceAll(
      has_scope ? key.substr(scope + sizeof kScope - 1) : key, {{"program=", ""},
                                                                {"name=", ""},
                                                                {"execution=", ""},
                                                                {" ordinal=", "."},
                                                                {" occurrence=", "."}});
  // The end of a scope tells more than its beginning.
  if (has_scope && text.size() > kMaxCallShown)
    return absl::StrCat("..", text.substr(text.size() - (kMaxCallShown - 2)));
  return Shortened(text, kMaxCallShown);
}

// "failed in publish" -> "failed".
std::string ShortPhase(const std::string& phase) { return phase.substr(0, phase.find(' ')); }

std::string FingerprintOf(const Line& line) {
  if (line.fingerprints.size() > 1) return "differ";
  return line.fingerprints.begin()->substr(0, kDigitsShown);
}

// A rank that is one operation ahead has forgotten one more: what is older than the youngest end
// of a full ring would only look as if ranks had left it out.
absl::Duration Horizon(const epd::v1::ExplainGroupResponse& why) {
  int depth = 0;
  for (const epd::v1::RankPast& rank : why.past()) {
    depth = std::max(depth, rank.operations_size());
  }
  absl::Duration horizon = absl::InfiniteDuration();
  for (const epd::v1::RankPast& rank : why.past()) {
    if (depth < kFewestKept || rank.operations_size() < depth) continue;
    horizon = std::min(horizon, ToDuration(rank.operations(depth - 1).age()));
  }
  return horizon;
}

// The newest first.
std::vector<Line> LinesOf(const epd::v1::ExplainGroupResponse& why, const std::string& tenant) {
  std::map<std::string, Line> by_key;
  for (const epd::v1::RankPast& rank : why.past()) {
    if (rank.tenant() != tenant) continue;
    for (const epd::v1::PastOperation& operation : rank.operations()) {
      // Calls that do not agree in their kind have one key and are one operation.
      Line& line = by_key[operation.key()];
      if (line.first == nullptr || ToDuration(operation.age()) > line.age) {
        line.first = &operation;
        line.age = ToDuration(operation.age());
      }
      line.fingerprints.insert(operation.fingerprint());
      line.phases[rank.rank()] = operation.phase();
    }
  }
  std::vector<Line> lines;
  const absl::Duration horizon = Horizon(why);
  for (auto& [unused, line] : by_key) {
    if (line.age <= horizon) lines.push_back(std::move(line));
  }
  absl::c_stable_sort(lines, [](const Line& a, const Line& b) { return a.age < b.age; });
  return lines;
}

bool WentWell(const Line& line, const std::vector<uint32_t>& ranks) {
  return absl::c_all_of(ranks, [&](uint32_t rank) {
    const auto phase = line.phases.find(rank);
    return phase != line.phases.end() && phase->second == "done";
  });
}

// Ranks that are in the same phase of every line, the largest set first, then by rank.
std::vector<std::vector<uint32_t>> SetsOf(const std::vector<Line>& lines,
                                          const std::vector<uint32_t>& ranks) {
  std::map<std::vector<std::string>, std::vector<uint32_t>> by_phases;
  for (const uint32_t rank : ranks) {
    std::vector<std::string> phases;
    for (const Line& line : lines) {
      const auto phase = line.phases.find(rank);
      phases.push_back(phase == line.phases.end() ? "" : phase->second);
    }
    by_phases[phases].push_back(rank);
  }
  std::vector<std::vector<uint32_t>> sets;
  for (auto& [unused, set] : by_phases) sets.push_back(std::move(set));
  absl::c_sort(sets, [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  return sets;
}

std::vector<uint32_t> RanksOf(const epd::v1::ExplainGroupResponse& why, const std::string& tenant) {
  std::set<uint32_t> ranks;
  for (const epd::v1::Rank& rank : why.group().ranks()) ranks.insert(rank.rank());
  for (const epd::v1::RankPast& past : why.past()) {
    if (past.tenant() == tenant) ranks.insert(past.rank());
  }
  return {ranks.begin(), ranks.end()};
}

std::string LinesTable(const std::vector<Line>& lines,
                       const std::vector<std::vector<uint32_t>>& sets) {
  std::vector<Column> columns = {{"BEGUN", Align::kRight}, {"KIND"}, {"CALL"}, {"FINGERPRINT"}};
  const size_t num_shown = std::min(sets.size(), kMaxColumns);
  for (size_t i = 0; i < num_shown; ++i) {
    columns.push_back({absl::StrCat("R ", Shortened(HumanRanges(sets[i]), kMaxRanksShown))});
  }
  Table table(columns);
  for (const Line& line : lines) {
    std::vector<std::string> row = {HumanDuration(line.age), line.first->kind(),
                                    ShortCall(line.first->key()), FingerprintOf(line)};
    for (size_t i = 0; i < num_shown; ++i) {
      const auto phase = line.phases.find(sets[i][0]);
      row.push_back(phase == line.phases.end() ? "" : ShortPhase(phase->second));
    }
    table.AddRow(row);
  }
  std::string text = table.ToString();
  for (size_t i = num_shown; i < sets.size(); ++i) {
    absl::StrAppend(&text, "ranks ", Shortened(HumanRanges(sets[i]), 2 * kMaxRanksShown),
                    ": like none of these, see -o json\n");
    if (i == num_shown + kMaxColumns) {
      absl::StrAppend(&text, "and ", sets.size() - i - 1, " more such sets of ranks\n");
      break;
    }
  }
  return text;
}

std::string OfTenant(const epd::v1::ExplainGroupResponse& why, const std::string& tenant,
                     bool all) {
  const std::vector<uint32_t> ranks = RanksOf(why, tenant);
  std::vector<Line> lines = LinesOf(why, tenant);
  size_t num_shown = lines.size();
  if (!all) {
    while (num_shown > 0 && WentWell(lines[num_shown - 1], ranks)) --num_shown;
    num_shown = std::min(lines.size(), num_shown + kWellShown);
  }
  const size_t num_left = lines.size() - num_shown;
  lines.resize(num_shown);
  std::string text = absl::StrCat(
      "last operations", tenant.empty() ? "" : absl::StrCat(" of tenant ", tenant),
      ", newest first; a call is program, scope or name, execution.ordinal.occurrence:\n",
      LinesTable(lines, SetsOf(lines, ranks)));
  if (num_left > 0) {
    absl::StrAppend(&text, "and ", num_left, " before, done by all ranks (--history lists them)\n");
  }
  return text;
}

}  // namespace

std::string PastText(const epd::v1::ExplainGroupResponse& why, bool all) {
  std::set<std::string> tenants;
  for (const epd::v1::RankPast& past : why.past()) tenants.insert(past.tenant());
  std::string text;
  for (const std::string& tenant : tenants) text += OfTenant(why, tenant, all);
  return text;
}

}  // namespace epd::cli
