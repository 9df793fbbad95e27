#include "daemon/control/formation_errors.h"

#include <algorithm>
#include <functional>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/duration_text.h"

namespace epd {
namespace {

std::string Quoted(const GroupSpec& spec) { return absl::StrCat("group=", Title(spec)); }

std::string DescribeOne(const RankPhase& rank) {
  std::string out = Describe(rank.holder, rank.phase);
  const RankHolder& who = rank.holder;
  if (!who.node.value.empty()) absl::StrAppend(&out, " node=", who.node.value);
  if (who.worker.on_gpu()) absl::StrAppend(&out, " worker=", ToString(who.worker));
  if (!who.client_name.empty()) absl::StrAppend(&out, " client=", who.client_name);
  if (!who.client_version.empty()) absl::StrAppend(&out, " version=", who.client_version);
  if (who.started > 0)
    absl::StrAppend(&out, " started=",
                    absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(who.started),
                                     absl::UTCTimeZone()));
  if (rank.last_seen >= absl::ZeroDuration())
    absl::StrAppend(&out, " last_seen=", InMilliseconds(rank.last_seen), " ago");
  return out;
}

// What most ranks have of one thing; the odd nodes are named. Empty: all agree.
std::string OddOnes(const std::string& what, const std::vector<NodeToCompare>& nodes,
                    const std::function<std::string(const NodeFacts&)>& value,
                    bool of_worker = false) {
  std::map<std::string, size_t> votes;
  for (const NodeToCompare& node : nodes) votes[value(node.facts)] += node.num_ranks;
  if (votes.size() <= 1) return "";
  const auto most =
      absl::c_max_element(votes, [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<std::string> odd;
  for (const NodeToCompare& node : nodes) {
    const std::string got = value(node.facts);
    if (got == most->first) continue;
    odd.push_back(absl::StrCat(of_worker ? Named(node.worker) : Named({node.worker.node, {}}),
                               " has ", got.empty() ? "none" : got));
  }
  odd.erase(std::unique(odd.begin(), odd.end()), odd.end());
  return absl::StrCat(what, ": ", absl::StrJoin(odd, ", "), "; most ranks have ",
                      most->first.empty() ? "none" : most->first);
}

// Clocks are compared with the median, not with each other.
std::string OddClocks(const std::vector<NodeToCompare>& nodes) {
  std::vector<absl::Duration> offsets;
  for (const NodeToCompare& node : nodes) offsets.push_back(node.facts.clock_offset);
  absl::c_sort(offsets);
  const absl::Duration median = offsets[offsets.size() / 2];
  std::vector<std::string> odd;
  for (const NodeToCompare& node : nodes) {
    const absl::Duration off = node.facts.clock_offset - median;
    if (absl::AbsDuration(off) <= kMaxClockOffset) continue;
    odd.push_back(
        absl::StrCat("the clock of node ", node.worker.node.value, " is ",
                     absl::FormatDuration(absl::Trunc(absl::AbsDuration(off), absl::Seconds(1))),
                     off > absl::ZeroDuration() ? " ahead of" : " behind", " the others"));
  }
  odd.erase(std::unique(odd.begin(), odd.end()), odd.end());
  return odd.empty() ? "" : absl::StrCat("clock: ", absl::StrJoin(odd, ", "));
}

}  // namespace

std::string DescribeAll(const std::vector<RankPhase>& ranks) {
  if (ranks.empty()) return "none";
  std::string out;
  for (size_t i = 0; i < ranks.size() && i < kMaxNamedInText; ++i) {
    absl::StrAppend(&out, i == 0 ? "" : "; ", DescribeOne(ranks[i]));
  }
  if (ranks.size() <= kMaxNamedInText) return out;
  return absl::StrCat(out, "; and ", ranks.size() - kMaxNamedInText,
                      " more, which epctl why lists");
}

absl::Status SpecMismatchError(const GroupSpec& creator, const std::vector<SpecBrought>& brought) {
  // The reference is what most ranks brought; at a tie the lowest rank's, whoever came first.
  const GroupSpec* expected = &creator;
  Rank lowest;
  size_t most = 0;
  const auto votes_for = [&](const GroupSpec& spec) {
    size_t votes = 0;
    for (const SpecBrought& b : brought) votes += b.spec == spec ? b.ranks.size() : 0;
    return votes;
  };
  for (const SpecBrought& b : brought) {
    const size_t votes = votes_for(b.spec);
    if (votes < most || (votes == most && lowest < b.who.rank)) continue;
    most = votes;
    lowest = b.who.rank;
    expected = &b.spec;
  }
  std::map<std::string, std::vector<Rank>> by_difference;  // "field: got x, expected y" -> ranks
  std::vector<RankPhase> odd;
  for (const SpecBrought& b : brought) {
    const std::vector<FieldDifference> differences = Differences(b.spec, *expected);
    if (differences.empty()) continue;
    odd.push_back({b.who, "wrong_spec"});
    for (const FieldDifference& d : differences) {
      auto& ranks =
          by_difference[absl::StrCat(d.field, ": got ", d.got, ", expected ", d.expected)];
      ranks.insert(ranks.end(), b.ranks.begin(), b.ranks.end());
    }
  }
  const std::string fields =
      absl::StrJoin(by_difference, "; ", [](std::string* out, const auto& line) {
        absl::StrAppend(out, line.first, " (ranks ", DescribeRanks(line.second), ")");
      });
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(creator), " phase=forming: specs differ: ", fields, "; odd ones: ", DescribeAll(odd),
      "; give every rank the same spec and join again [EPD-1001]"));
}

absl::Status RankClaimedTwiceError(const GroupSpec& spec, const RankHolder& holder,
                                   const RankHolder& other) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(spec), " phase=forming: rank ", holder.rank.value, " was claimed twice: ",
      DescribeOne({holder, "arrived"}), " and ", DescribeOne({other, "arrived"}),
      "; give every process its own rank and join again; ", kSeparateJobs, " [EPD-1007]"));
}

absl::Status RankHeldError(const GroupSpec& spec, Epoch epoch,
                           const std::vector<RankPhase>& holders,
                           const std::vector<FieldDifference>& differences) {
  std::string text =
      absl::StrCat(Quoted(spec), " epoch=", epoch.value, ": held by ", DescribeAll(holders));
  for (const FieldDifference& d : differences) {
    absl::StrAppend(&text, "; ", d.field, ": got ", d.got, ", the group has ", d.expected);
  }
  return absl::AlreadyExistsError(
      absl::StrCat(text, "; end the holder, or wait for its end; ", kSeparateJobs, " [EPD-1006]"));
}

absl::Status TenantSpecError(const RankHolder& who, const GroupSpec& brought,
                             const GroupSpec& present) {
  std::string fields;
  for (const FieldDifference& d : Differences(Contract(brought), Contract(present))) {
    absl::StrAppend(&fields, fields.empty() ? "" : "; ", d.field, ": got ", d.got, ", expected ",
                    d.expected);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(brought), " ", Describe(who, "wrong_spec"), ": tenant \"", present.tenant,
      "\" serves the group with another spec: ", fields,
      "; tenants of one group share its spec, so give the same one or use another group name"));
}

std::string DescribeRival(const RivalClaim& rival) {
  return absl::StrCat(
      "rank ", rival.who.rank.value, " is also claimed by ",
      DescribeOne({rival.who, rival.waits ? "waits_for_this_run_to_end" : "refused"}), "; ",
      kSeparateJobs);
}

std::string Named(const WorkerId& worker) {
  return worker.name.on_gpu() ? ToString(worker) : absl::StrCat("node ", worker.node.value);
}

absl::Status MixedWorkersError(const GroupSpec& spec, const RankHolder& got,
                               const RankHolder& expected) {
  return absl::UnimplementedError(absl::StrCat(
      Quoted(spec), " phase=bootstrapping: ", ToString(got.server()), " would serve ",
      Describe(got, "arrived"), ", but ", ToString(expected.server()), " ",
      Describe(expected, "arrived"),
      "; rows do not go between a CPU's staging and a GPU's: give all ranks of the group the same "
      "backend"));
}

absl::Status TenantWorkerError(const GroupSpec& spec, const RankHolder& got,
                               const RankHolder& expected, const std::string& other_tenant) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(spec), ": rank ", got.rank.value, " is on ", ToString(got.server()), " (",
      Describe(got, "arrived"), "), expected ", ToString(expected.server()), ", where tenant \"",
      other_tenant, "\" has it (", Describe(expected, "held"),
      "); tenants of one group share its ranks, so start it there or use another group name"));
}

absl::Status FormationLateError(const FormationReport& late) {
  std::string text = absl::StrCat(
      "group=", late.title, " epoch=", late.epoch.value, " phase=", std::string(Name(late.state)),
      ": not READY after ", InMilliseconds(late.allowed),
      " [EPD-1201]; arrived: ", DescribeAll(late.arrived), "; missing: ranks ",
      DescribeRanks(late.missing), "; dead: ", DescribeAll(late.dead),
      "; wrong epoch or spec: ", DescribeAll(late.wrong));
  if (!late.cause.ok()) absl::StrAppend(&text, "; it formed again because: ", late.cause.message());
  for (const auto& [worker, why] : late.down) {
    absl::StrAppend(&text, "; the worker of ", Named(worker),
                    " does not serve: ", why.empty() ? "it has not begun to" : why);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      text,
      late.missing.empty() && !late.down.empty()
          ? "; mend what the worker lacks, see epctl doctor and epd's log there, and join again"
          : "; start the missing ranks and join again"));
}

absl::Status CompareNodes(const std::string& group, const std::vector<NodeToCompare>& nodes,
                          bool check_nccl) {
  if (nodes.size() < 2) return absl::OkStatus();
  std::vector<std::string> differences = {
      OddOnes("epd", nodes,
              [](const NodeFacts& facts) { return absl::StrCat("exchange ", facts.exchange); }),
      OddClocks(nodes)};
  if (check_nccl) {
    differences.push_back(OddOnes(
        "NCCL", nodes, [](const NodeFacts& facts) { return facts.nccl_version; },
        /*of_worker=*/true));
    differences.push_back(
        OddOnes("driver", nodes, [](const NodeFacts& facts) { return facts.driver_version; }));
  }
  differences.erase(std::remove(differences.begin(), differences.end(), ""), differences.end());
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      absl::StrCat("group=", group), " phase=bootstrapping: nodes do not agree: ",
      absl::StrJoin(differences, "; "), "; make them equal and join again [EPD-1403]"));
}

}  // namespace epd
