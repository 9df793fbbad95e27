#include "absl/strings/str_cat.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {

std::string ExplainText(const ExplainReport& report) {
  using E = ExplainReport::Error;
  if (report.errors_size() == 1) {
    const E& error = report.errors(0);
    return AlignedPairs({{"error", absl::StrCat(error.number(), " ", error.code())},
                         {"text", error.error()},
                         {"causes", error.causes()},
                         {"do", error.action()},
                         {"test", error.test()}});
  }
  const Fields<E> fields = {
      {"NUMBER", [](const E& e) { return e.number(); }},
      {"CODE", [](const E& e) { return e.code(); }},
      {"ERROR", [](const E& e) { return e.error(); }},
      {"DO", [](const E& e) { return e.action(); }},
  };
  return absl::StrCat(MakeTable(report.errors(), fields, ""),
                      "\nepctl explain NUMBER says more of one.\n");
}

}  // namespace epd::cli
