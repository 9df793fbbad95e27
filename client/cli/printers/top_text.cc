#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

using Figures = epd::v1::GetFiguresResponse;

struct Line {
  const epd::v1::Group* group = nullptr;
  double operations = 0;
  double failed = 0;
  double bytes = 0;
  uint64_t staging = 0;
  const epd::v1::Rank* awaited = nullptr;  // That others wait for longest.
  absl::Duration waited = absl::ZeroDuration();
};

// What is subtracted and divided by: an epd that has restarted since, or none, is compared with nothing.
struct Base {
  const Figures* before = nullptr;
  double seconds = 1;
};

Base BaseOf(const Figures& now, const Figures* before) {
  if (before == nullptr || before->status().incarnation() != now.status().incarnation()) return {};
  const absl::Duration between = ToDuration(now.status().up()) - ToDuration(before->status().up());
  if (between <= absl::ZeroDuration()) return {};
  return {before, absl::ToDoubleSeconds(between)};
}

Line LineOf(const epd::v1::Group& group, const Base& base) {
  Line line;
  line.group = &group;
  epd::v1::Group old;
  if (base.before != nullptr) {
    const auto found = absl::c_find_if(base.before->groups(), [&](const epd::v1::Group& one) {
      return one.group_id() == group.group_id();
    });
    if (found != base.before->groups().end()) old = *found;
  }
  const auto rate = [&](uint64_t now, uint64_t then) {
    return static_cast<double>(now - std::min(now, then)) / base.seconds;
  };
  line.operations = rate(group.num_operations(), old.num_operations());
  line.failed = rate(group.num_failed(), old.num_failed());
  line.bytes = rate(group.bytes_moved(), old.bytes_moved());
  for (const epd::v1::Rank& rank : group.ranks()) {
    if (!absl::StartsWith(rank.phase(), "absent_in_")) continue;
    const absl::Duration age = ToDuration(rank.phase_age());
    if (line.awaited != nullptr && age <= line.waited) continue;
    line.awaited = &rank;
    line.waited = age;
  }
  return line;
}

bool Before(const Line& a, const Line& b, char order) {
  switch (order) {
    case 'b':
      return a.bytes > b.bytes;
    case 'f':
      return a.failed > b.failed;
    case 'w':
      return a.waited > b.waited;
    case 's':
      return a.staging > b.staging;
    case 'n':
      return std::pair(a.group->spec().name(), a.group->spec().tenant()) <
             std::pair(b.group->spec().name(), b.group->spec().tenant());
    default:
      return a.operations > b.operations;
  }
}

std::string Number(double value, bool rates) {
  return rates ? absl::StrFormat("%.1f", value) : HumanCount(static_cast<uint64_t>(value));
}

std::string AwaitedText(const Line& line) {
  if (line.awaited == nullptr) return "";
  return absl::StrCat("rank ", line.awaited->rank(), " (", line.awaited->host(), " pid ",
                      line.awaited->pid(), ")");
}

std::string HeaderText(const Figures& now) {
  const epd::v1::GetStatusResponse& status = now.status();
  std::string text = absl::StrCat(
      status.node(), ": ", EnumWord(epd::v1::Health_Name(status.health()), "HEALTH_"), ", epd ",
      status.version(), ", up ", HumanDuration(status.up()), "; ", status.num_sessions(),
      " sessions; staging ", HumanBytes(status.pool_committed_bytes()), " of ",
      HumanBytes(status.pool_bytes()), "\n");
  for (const std::string& problem : status.problems())
    absl::StrAppend(&text, "problem: ", problem, "\n");
  return text;
}

}  // namespace

std::string TopText(const Figures& now, const Figures* before, char order) {
  const Base base = BaseOf(now, before);
  const bool rates = base.before != nullptr;
  std::map<uint64_t, uint64_t> staging;  // By group; where several share it, of the first.
  for (const epd::v1::MemoryRegion& region : now.staging()) {
    if (region.group_ids_size() > 0) staging[region.group_ids(0)] += region.committed_bytes();
  }
  std::vector<Line> lines;
  for (const epd::v1::Group& group : now.groups()) {
    lines.push_back(LineOf(group, base));
    lines.back().staging = staging[group.group_id()];
  }
  absl::c_stable_sort(lines, [order](const Line& a, const Line& b) { return Before(a, b, order); });
  const Fields<Line> fields = {
      {"GROUP", [](const Line& l) { return l.group->spec().name(); }},
      {"TENANT", [](const Line& l) { return l.group->spec().tenant(); }, Align::kLeft, true},
      {"STATE",
       [](const Line& l) {
         return EnumWord(epd::v1::GroupState_Name(l.group->state()), "GROUP_STATE_");
       }},
      {rates ? "OPS/S" : "OPS", [=](const Line& l) { return Number(l.operations, rates); },
       Align::kRight},
      {rates ? "FAILED/S" : "FAILED", [=](const Line& l) { return Number(l.failed, rates); },
       Align::kRight},
      {rates ? "STAGED/S" : "STAGED",
       [](const Line& l) { return HumanBytes(static_cast<uint64_t>(l.bytes)); }, Align::kRight},
      {"OPEN", [](const Line& l) { return absl::StrCat(l.group->num_open_operations()); },
       Align::kRight},
      {"STAGING", [](const Line& l) { return HumanBytes(l.staging); }, Align::kRight},
      {"WAITS FOR", AwaitedText, Align::kLeft, true},
      {"SINCE", [](const Line& l) { return l.awaited ? HumanDuration(l.waited) : ""; },
       Align::kRight, true},
  };
  return absl::StrCat(HeaderText(now), "\n", MakeTable(lines, fields, "no groups\n"));
}

}  // namespace epd::cli
