#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

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
    std::sort(sorted.begin(), sorted.end());
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

std::string Experts(const epd::v1::Rank& rank) {
  std::vector<uint32_t> experts(rank.experts().begin(), rank.experts().end());
  std::sort(experts.begin(), experts.end());
  return HumanRanges(experts);
}

}  // namespace

std::string SessionsTable(const epd::v1::ListSessionsResponse& sessions) {
  if (sessions.sessions().empty()) return "no sessions\n";
  Table table({{"SESSION", Align::kRight},
               {"PID", Align::kRight},
               {"UID", Align::kRight},
               {"HOST"},
               {"AGE", Align::kRight},
               {"OPEN", Align::kRight},
               {"CLIENT"},
               {"VERSION"},
               {"RANKS"},
               {"PROGRAM"},
               {"METADATA"}});
  for (const epd::v1::Session& session : sessions.sessions()) {
    table.AddRow({absl::StrCat(session.session_id()), absl::StrCat(session.pid()),
                  absl::StrCat(session.uid()), session.host(), HumanDuration(session.age()),
                  absl::StrCat(session.num_open_operations()),
                  Shortened(session.client_name(), kMaxClientName), session.client_version(),
                  RanksByGroup(session), Said(session, &epd::v1::Rank::program),
                  Said(session, &epd::v1::Rank::metadata)});
  }
  table.DropIfEmpty(10);
  table.DropIfEmpty(9);
  return table.ToString();
}

std::string RanksTable(const epd::v1::ListRanksResponse& ranks) {
  if (ranks.ranks().empty()) return "no ranks\n";
  Table table({{"GROUP"},
               {"TENANT"},
               {"RANK", Align::kRight},
               {"PHASE"},
               {"FOR", Align::kRight},
               {"HOST"},
               {"PID", Align::kRight},
               {"SESSION", Align::kRight},
               {"DEVICE"},
               {"WORKER"},
               {"EXPERTS"},
               {"CLIENT"},
               {"PROGRAM"},
               {"METADATA"}});
  for (const epd::v1::Rank& rank : ranks.ranks()) {
    table.AddRow({rank.group(), rank.tenant(), absl::StrCat(rank.rank()), rank.phase(),
                  rank.has_phase_age() ? HumanDuration(rank.phase_age()) : "", rank.host(),
                  rank.pid() == 0 ? "" : absl::StrCat(rank.pid()),
                  rank.session_id() == 0 ? "" : absl::StrCat(rank.session_id()), rank.device(),
                  rank.worker(), Experts(rank), Shortened(rank.client_name(), kMaxClientName),
                  rank.program(), rank.metadata()});
  }
  for (const size_t optional : {13, 12, 9, 1}) table.DropIfEmpty(optional);
  return table.ToString();
}

}  // namespace epd::cli
