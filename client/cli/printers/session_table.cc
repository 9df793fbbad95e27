#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

// "train:0-1 eval:0", and of a tenant "train/b:0-1".
std::string RanksByGroup(const epd::v1::Session& session) {
  std::map<std::string, std::vector<uint32_t>> ranks;
  for (const epd::v1::Rank& rank : session.ranks()) {
    const std::string of = rank.tenant().empty() ? "" : absl::StrCat("/", rank.tenant());
    ranks[absl::StrCat(rank.group(), of)].push_back(rank.rank());
  }
  return absl::StrJoin(ranks, " ", [](std::string* out, auto& entry) {
    std::vector<uint32_t> sorted = entry.second;
    absl::c_sort(sorted);
    absl::StrAppend(out, entry.first, ":", HumanRanges(sorted));
  });
}

// What a session's Joins said, each thing once.
std::string Said(const epd::v1::Session& session,
                 const std::string& (epd::v1::Rank::*what)() const) {
  std::set<std::string> said;
  for (const epd::v1::Rank& rank : session.ranks()) said.insert((rank.*what)());
  said.erase("");
  return absl::StrJoin(said, " ");
}

}  // namespace

std::string SessionsTable(const epd::v1::ListSessionsResponse& sessions) {
  using S = epd::v1::Session;
  Fields<S> fields = {
      {"SESSION", [](const S& s) { return absl::StrCat(s.session_id()); }, Align::kRight},
      {"PID", [](const S& s) { return absl::StrCat(s.pid()); }, Align::kRight},
      {"UID", [](const S& s) { return absl::StrCat(s.uid()); }, Align::kRight},
      {"HOST", [](const S& s) { return s.host(); }},
      {"AGE", [](const S& s) { return HumanDuration(s.age()); }, Align::kRight},
      {"OPEN", [](const S& s) { return absl::StrCat(s.num_open_operations()); }, Align::kRight},
      {"CLIENT", [](const S& s) { return Shortened(s.client_name(), kMaxClientName); }},
      {"VERSION", [](const S& s) { return s.client_version(); }},
      {"RANKS", RanksByGroup},
      {"PROGRAM", [](const S& s) { return Said(s, &epd::v1::Rank::program); }, Align::kLeft, true},
      {"METADATA", [](const S& s) { return Said(s, &epd::v1::Rank::metadata); }, Align::kLeft,
       true},
  };
  const int num_quotas = sessions.sessions().empty() ? 0 : sessions.sessions(0).quotas_size();
  for (int i = 0; i < num_quotas; ++i) {
    const auto text = [i](const S& s) { return i < s.quotas_size() ? QuotaText(s.quotas(i)) : ""; };
    fields.insert(fields.end() - 3,
                  {QuotaTitle(sessions.sessions(0).quotas(i)), text, Align::kRight});
  }
  return absl::StrCat(MakeTable(sessions.sessions(), fields, "no sessions\n"),
                      UsersTable(sessions.users()));
}

}  // namespace epd::cli
