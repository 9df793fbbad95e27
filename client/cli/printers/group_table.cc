#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

constexpr size_t kBusiestExperts = 8;

std::string StateOf(const epd::v1::Group& group) {
  return EnumWord(epd::v1::GroupState_Name(group.state()), "GROUP_STATE_");
}

// "4/4": ranks that a living session holds, of all.
std::string RanksHeld(const epd::v1::Group& group) {
  const auto held = absl::c_count_if(group.ranks(), [](const epd::v1::Rank& rank) {
    return rank.session_id() != 0 && rank.phase() != "dead";
  });
  return absl::StrCat(held, "/", group.spec().num_ranks());
}

std::string ExecutorOf(const epd::v1::GroupSpec& spec) {
  if (spec.executor() == epd::v1::EXECUTOR_UNSPECIFIED) return "the backend's default";
  return EnumWord(epd::v1::Executor_Name(spec.executor()), "EXECUTOR_");
}

// "by NCCL: cuda:0 has no peer access to cuda:1".
std::string LinkOf(const epd::v1::Group& group) {
  if (group.link().empty()) return "";
  const std::string by = absl::StrCat("by ", absl::StrReplaceAll(group.link(), {{"_", " "}}));
  return group.link_reason().empty() ? by : absl::StrCat(by, ": ", group.link_reason());
}

// Of the NCCL id that the ranks' workers hold: the same everywhere, or something is very wrong.
std::string UniqueId(const epd::v1::Group& group) {
  std::set<std::string> digests;
  size_t num_ranks = 0;
  for (const epd::v1::Rank& rank : group.ranks()) {
    if (rank.unique_id_sha256().empty()) continue;
    digests.insert(absl::BytesToHexString(rank.unique_id_sha256()));
    ++num_ranks;
  }
  if (digests.empty()) return group.unique_id_note();
  if (digests.size() > 1) return absl::StrCat("DIFFERENT ids: ", absl::StrJoin(digests, ", "));
  return absl::StrCat("sha256 ", digests.begin()->substr(0, 16), ", on ", num_ranks, " of ",
                      group.spec().num_ranks(), " ranks");
}

std::string LoadTable(const epd::v1::Group& group) {
  const auto& routes = group.expert_routes();
  const uint64_t total = std::accumulate(routes.begin(), routes.end(), uint64_t{0});
  if (total == 0) return "";
  std::vector<int> order(static_cast<size_t>(routes.size()));
  std::iota(order.begin(), order.end(), 0);
  absl::c_stable_sort(order, [&](int a, int b) { return routes[a] > routes[b]; });
  Table table({{"EXPERT", Align::kRight}, {"ROUTES", Align::kRight}, {"OF MEAN", Align::kRight}});
  const double mean = static_cast<double>(total) / routes.size();
  for (size_t i = 0; i < std::min(order.size(), kBusiestExperts); ++i) {
    const auto count = routes[order[i]];
    table.AddRow({absl::StrCat(order[i]), HumanCount(count),
                  absl::StrFormat("%.2f", static_cast<double>(count) / mean)});
  }
  std::string title = "busiest experts since the group was made";
  if (order.size() > kBusiestExperts)
    absl::StrAppend(&title, " (", kBusiestExperts, " of ", order.size(), ")");
  return absl::StrCat("\n", title, ":\n", table.ToString());
}

std::string OneGroup(const epd::v1::Group& group) {
  const epd::v1::GroupSpec& spec = group.spec();
  std::string text = AlignedPairs({
      {"group", spec.name()},
      {"instance", spec.instance()},
      {"tenant", spec.tenant()},
      {"id", absl::StrCat(group.group_id())},
      {"state", absl::StrCat(StateOf(group), " for ", HumanDuration(group.state_age()),
                             group.persistent() ? ", persistent" : "")},
      {"epoch", absl::StrCat(group.epoch(), ", formation ", group.formation(), ", generation ",
                             group.generation())},
      {"size", absl::StrCat(spec.num_ranks(), " ranks, ", spec.num_experts(), " experts, hidden ",
                            spec.hidden(), ", top-", spec.top_k(), ", at most ",
                            EnumWord(epd::v1::Dtype_Name(spec.max_token_dtype()), "DTYPE_"))},
      {"limits",
       absl::StrCat(spec.max_tokens_per_rank(), " tokens and ", spec.recv_capacity_per_rank(),
                    " receive slots per rank, overflow is ",
                    spec.drop_on_overflow() ? "dropped" : "an error")},
      {"runs on", absl::StrCat(spec.backend(), " backend, ", ExecutorOf(spec), " executor")},
      {"rows go", LinkOf(group)},
      {"operations",
       absl::StrCat(HumanCount(group.num_operations()), " done, ", group.num_open_operations(),
                    " open, ", HumanCount(group.num_failed()), " failed (",
                    HumanCount(group.num_failed_calls()), " calls), ",
                    HumanBytes(group.bytes_moved()), " moved, on node ", group.counted_by())},
      {"unique id", UniqueId(group)},
      {"last error", group.last_error().message()},
  });
  epd::v1::ListRanksResponse ranks;
  *ranks.mutable_ranks() = group.ranks();
  return absl::StrCat(text, "\n", RanksTable(ranks), LoadTable(group));
}

}  // namespace

std::string EnumWord(const std::string& value_name, const std::string& prefix) {
  const std::string word(absl::StripPrefix(value_name, prefix));
  return absl::StrReplaceAll(absl::AsciiStrToLower(word), {{"_", "-"}});
}

// What the columns of figures are.
std::string CountersMeaning(const std::string& node) {
  return absl::StrCat(
      "Counted on node ", node,
      " since each group was made: operations that ended well (OPS) and that did not "
      "(FAILED),\ncalls of ranks here that got an error, bytes that ranks here staged "
      "(MOVED).\n");
}

std::string GroupsTable(const epd::v1::ListGroupsResponse& groups) {
  using G = epd::v1::Group;
  const Fields<G> fields = {
      {"GROUP", [](const G& g) { return g.spec().name(); }},
      {"TENANT", [](const G& g) { return g.spec().tenant(); }, Align::kLeft, true},
      {"STATE", StateOf},
      {"SINCE", [](const G& g) { return HumanDuration(g.state_age()); }, Align::kRight},
      {"RANKS", RanksHeld, Align::kRight},
      {"EXPERTS", [](const G& g) { return absl::StrCat(g.spec().num_experts()); }, Align::kRight},
      {"HIDDEN", [](const G& g) { return absl::StrCat(g.spec().hidden()); }, Align::kRight},
      {"EPOCH", [](const G& g) { return absl::StrCat(g.epoch()); }, Align::kRight},
      {"LINK", [](const G& g) { return g.link(); }, Align::kLeft, true},
      {"OPS", [](const G& g) { return HumanCount(g.num_operations()); }, Align::kRight},
      {"OPEN", [](const G& g) { return absl::StrCat(g.num_open_operations()); }, Align::kRight},
      {"FAILED", [](const G& g) { return HumanCount(g.num_failed()); }, Align::kRight},
      {"FAILED CALLS", [](const G& g) { return HumanCount(g.num_failed_calls()); }, Align::kRight},
      {"MOVED", [](const G& g) { return HumanBytes(g.bytes_moved()); }, Align::kRight},
  };
  std::string errors;
  for (const G& group : groups.groups()) {
    if (group.last_error().message().empty()) continue;
    absl::StrAppend(&errors, errors.empty() ? "\n" : "", "last error of ", group.spec().name(),
                    group.spec().tenant().empty() ? "" : " tenant=", group.spec().tenant(), ": ",
                    group.last_error().message(), "\n");
  }
  const std::string meaning =
      groups.groups().empty() ? "" : CountersMeaning(groups.groups(0).counted_by());
  return absl::StrCat(MakeTable(groups.groups(), fields, "no groups\n"), meaning, errors);
}

std::string GroupDetails(const epd::v1::ListGroupsResponse& groups) {
  std::string text;
  for (const epd::v1::Group& group : groups.groups()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", OneGroup(group));
  }
  return text;
}

std::string DrainTable(const epd::v1::DrainGroupResponse& drained) {
  std::string text;
  for (const epd::v1::Group& group : drained.groups()) {
    const std::string& tenant = group.spec().tenant();
    absl::StrAppend(&text, "group ", group.spec().name(), tenant.empty() ? "" : " tenant=", tenant,
                    " is drained and ", StateOf(group), " (epoch ", group.epoch(), "; on node ",
                    group.counted_by(), " ", HumanCount(group.num_operations()),
                    " operations done, ", HumanCount(group.num_failed()), " failed, ",
                    HumanCount(group.num_failed_calls()), " failed calls, ",
                    HumanBytes(group.bytes_moved()), " moved)\n");
  }
  return text;
}

}  // namespace epd::cli
