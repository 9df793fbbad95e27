#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

std::string SupportArchiveTable(const SupportArchiveReport& report) {
  int num_ok = 0;
  std::vector<std::pair<std::string, std::string>> missing;  // Why; what, all of one reason.
  for (const SupportArchive::Part& part : report.parts()) {
    if (part.ok()) {
      ++num_ok;
    } else {
      const auto same =
          absl::c_find_if(missing, [&](const auto& one) { return one.first == part.problem(); });
      if (same == missing.end()) {
        missing.emplace_back(part.problem(), part.what());
      } else {
        absl::StrAppend(&same->second, ", ", part.what());
      }
    }
  }
  std::string text;
  for (const auto& [why, what] : missing) absl::StrAppend(&text, "  ", what, ": ", why, "\n");
  return absl::StrCat(report.file(), ": ", HumanBytes(report.bytes()), ", ", num_ok, " of ",
                      report.parts_size(), " parts",
                      text.empty() ? "\n" : absl::StrCat("; not there:\n", text));
}

}  // namespace epd::cli
