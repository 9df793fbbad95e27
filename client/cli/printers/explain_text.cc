#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

// Where an error's *Words* lead.
constexpr char kRunbook[] = "*...* is a heading of epd's runbook (deploy/runbook.md).\n";

}  // namespace

std::string ExplainText(const ExplainReport& report) {
  using E = ExplainReport::Error;
  if (report.errors_size() == 1) {
    const E& error = report.errors(0);
    const std::string text =
        AlignedPairs({{"error", absl::StrCat(error.number(), " ", error.code())},
                      {"text", error.error()},
                      {"causes", error.causes()},
                      {"do", error.action()},
                      {"test", error.test()}});
    return absl::StrContains(error.action(), "*") ? absl::StrCat(text, "\n", kRunbook) : text;
  }
  const Fields<E> fields = {
      {"NUMBER", [](const E& e) { return e.number(); }},
      {"CODE", [](const E& e) { return e.code(); }},
      {"ERROR", [](const E& e) { return e.error(); }},
      {"DO", [](const E& e) { return e.action(); }},
  };
  return absl::StrCat(MakeTable(report.errors(), fields, ""),
                      "\nepctl explain NUMBER says more of one. ", kRunbook);
}

}  // namespace epd::cli
