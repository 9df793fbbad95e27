#include "daemon/control/formation_errors.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd {
namespace {

std::string Quoted(const GroupSpec& spec) { return absl::StrCat("group=", Title(spec)); }

}  // namespace

std::string DescribeAll(const std::vector<RankPhase>& ranks) {
  if (ranks.empty()) return "none";
  return absl::StrJoin(ranks, "; ", [](std::string* out, const RankPhase& r) {
    absl::StrAppend(out, Describe(r.placement, r.phase));
  });
}

absl::Status SpecMismatchError(const GroupSpec& creator, const std::vector<SpecBrought>& brought) {
  // The reference is what most ranks brought; only a strict majority displaces the creator's.
  const GroupSpec* expected = &creator;
  const auto votes_for = [&](const GroupSpec& spec) {
    size_t votes = 0;
    for (const SpecBrought& b : brought) votes += b.spec == spec ? b.ranks.size() : 0;
    return votes;
  };
  size_t most = votes_for(creator);
  for (const SpecBrought& b : brought) {
    if (const size_t votes = votes_for(b.spec); votes > most) {
      most = votes;
      expected = &b.spec;
    }
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
      "; give every rank the same spec and join again"));
}

absl::Status RankClaimedTwiceError(const GroupSpec& spec, const Placement& holder,
                                   const Placement& other) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(spec), " phase=forming: rank ", holder.rank.value,
                   " was claimed twice: ", Describe(holder, "arrived"), " and ",
                   Describe(other, "arrived"), "; give every process its own rank and join again"));
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
      absl::StrCat(text, "; use another group name or instance, or end the holder"));
}

absl::Status TenantSpecError(const Placement& who, const GroupSpec& brought,
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

absl::Status TenantPlaceError(const GroupSpec& spec, const Placement& got,
                              const Placement& expected, const std::string& other_tenant) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(spec), ": rank ", got.rank.value, " is on node ", got.node.value, " (",
      Describe(got, "arrived"), "), expected node ", expected.node.value, ", where tenant \"",
      other_tenant, "\" has it (", Describe(expected, "held"),
      "); tenants of one group share its ranks, so start it there or use another group name"));
}

absl::Status FormationLateError(const LateFormation& late) {
  std::vector<RankPhase> dead;
  for (const Placement& p : late.dead) dead.push_back({p, "gone"});
  std::string text =
      absl::StrCat(absl::StrCat("group=", late.title), " epoch=", late.epoch.value,
                   " phase=", std::string(Name(late.state)), ": not READY after ",
                   absl::FormatDuration(late.allowed), "; arrived: ", DescribeAll(late.arrived),
                   "; missing: ranks ", DescribeRanks(late.missing), "; dead: ", DescribeAll(dead),
                   "; wrong spec: ", DescribeAll(late.wrong_spec));
  if (!late.cause.ok()) absl::StrAppend(&text, "; it formed again because: ", late.cause.message());
  return absl::DeadlineExceededError(
      absl::StrCat(text, "; start the missing ranks and join again"));
}

}  // namespace epd
