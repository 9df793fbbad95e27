#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

std::string RanksText(const google::protobuf::RepeatedPtrField<epd::v1::RankAccount>& ranks) {
  std::string text;
  for (const epd::v1::RankAccount& rank : ranks) {
    absl::StrAppend(&text, "    rank ", rank.rank(), " ", rank.phase());
    if (rank.pid() != 0)
      absl::StrAppend(&text, ", node ", rank.node(), ", host ", rank.host(), ", pid ", rank.pid(),
                      ", ", rank.client_name().substr(0, kMaxClientName), " ",
                      rank.client_version());
    if (rank.has_last_seen())
      absl::StrAppend(&text, ", seen ", HumanDuration(rank.last_seen()), " ago");
    text += "\n";
  }
  return text.empty() ? "    none\n" : text;
}

std::string OfTenant(const std::string& tenant) {
  return tenant.empty() ? "" : absl::StrCat(" of tenant ", tenant);
}

}  // namespace

std::string WhyText(const epd::v1::ExplainGroupResponse& why, bool all_past) {
  std::string text;
  for (const epd::v1::Group& tenant : why.tenants()) {
    absl::StrAppend(&text, "group ", why.name(), OfTenant(tenant.spec().tenant()), " is ",
                    EnumWord(epd::v1::GroupState_Name(tenant.state()), "GROUP_STATE_"), ", epoch ",
                    tenant.epoch(), "\n");
  }
  if (text.empty()) text = absl::StrCat("group ", why.name(), " has ended\n");
  absl::StrAppend(&text, "culprit: ", why.culprit().empty() ? "nobody" : why.culprit(), "\n  ",
                  why.evidence(), "\n");
  for (const epd::v1::Group& tenant : why.tenants()) {
    for (const epd::v1::Rank& rank : tenant.ranks()) text += ContestedText(rank);
  }
  for (const std::string& unanswered : why.unanswered())
    absl::StrAppend(&text, "no answer: ", unanswered, "\n");
  for (const epd::v1::OpenOperation& operation : why.operations()) {
    absl::StrAppend(&text, "open: ", operation.kind(), " ", operation.key(),
                    OfTenant(operation.tenant()), " on node ", operation.node(), ", ",
                    operation.phase(), " since ", HumanDuration(operation.age()),
                    ", waits for ranks ", absl::StrJoin(operation.waiting_for(), ", "), "\n");
  }
  text += PastText(why, all_past);
  if (!why.has_last_late()) return text;
  const epd::v1::FormationReport& late = why.last_late();
  absl::StrAppend(&text, "last late formation: after ", HumanDuration(late.allowed()),
                  "\n  arrived:\n", RanksText(late.arrived()), "  missing:\n",
                  RanksText(late.missing()), "  dead:\n", RanksText(late.dead()),
                  "  wrong epoch or spec:\n", RanksText(late.wrong()));
  return text;
}

}  // namespace epd::cli
