#include "absl/strings/str_cat.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

std::string SupportArchiveTable(const SupportArchiveReport& report) {
  int num_ok = 0;
  std::string missing;
  for (const SupportArchive::Part& part : report.parts()) {
    if (part.ok()) {
      ++num_ok;
    } else {
      absl::StrAppend(&missing, "  ", part.what(), ": ", part.problem(), "\n");
    }
  }
  return absl::StrCat(report.file(), ": ", HumanBytes(report.bytes()), ", ", num_ok, " of ",
                      report.parts_size(), " parts",
                      missing.empty() ? "\n" : absl::StrCat("; not there:\n", missing));
}

}  // namespace epd::cli
