#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

std::string Experts(const epd::v1::Rank& rank) {
  std::vector<uint32_t> experts(rank.experts().begin(), rank.experts().end());
  absl::c_sort(experts);
  return HumanRanges(experts);
}

}  // namespace

std::string ContestedText(const epd::v1::Rank& rank) {
  std::string text;
  for (const std::string& rival : rank.contested_by())
    absl::StrAppend(&text, "contested: group ", rank.group(),
                    rank.tenant().empty() ? "" : " tenant ", rank.tenant(), ": ", rival, "\n");
  return text;
}

std::string RanksTable(const epd::v1::ListRanksResponse& ranks) {
  using R = epd::v1::Rank;
  const Fields<R> fields = {
      {"GROUP", [](const R& r) { return r.group(); }},
      {"TENANT", [](const R& r) { return r.tenant(); }, Align::kLeft, true},
      {"RANK", [](const R& r) { return absl::StrCat(r.rank()); }, Align::kRight},
      {"PHASE", [](const R& r) { return r.phase(); }},
      {"FOR", [](const R& r) { return r.has_phase_age() ? HumanDuration(r.phase_age()) : ""; },
       Align::kRight},
      {"HOST", [](const R& r) { return r.host(); }},
      {"PID", [](const R& r) { return NonZero(r.pid()); }, Align::kRight},
      {"SESSION", [](const R& r) { return NonZero(r.session_id()); }, Align::kRight},
      {"DEVICE", [](const R& r) { return r.device(); }},
      {"WORKER", [](const R& r) { return r.worker(); }, Align::kLeft, true},
      {"EXPERTS", Experts},
      {"CLIENT", [](const R& r) { return Shortened(r.client_name(), kMaxClientName); }},
      {"PROGRAM", [](const R& r) { return r.program(); }, Align::kLeft, true},
      {"METADATA", [](const R& r) { return r.metadata(); }, Align::kLeft, true},
  };
  std::string text = MakeTable(ranks.ranks(), fields, "no ranks\n");
  for (const R& rank : ranks.ranks()) absl::StrAppend(&text, ContestedText(rank));
  return text;
}

}  // namespace epd::cli
