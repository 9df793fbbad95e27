#include "absl/strings/str_cat.h"
#include "client/cli/commands/command.h"
#include "client/cli/error_table.h"
#include "client/cli/printers/tables.h"
#include "client/cli/report.pb.h"

namespace epd::cli {

Report RunExplain(const CommandContext& context) {
  const std::string& asked = context.options.error;
  auto report = std::make_unique<ExplainReport>();
  for (const ErrorEntry& entry : FindErrors(asked)) {
    ExplainReport::Error& error = *report->add_errors();
    error.set_number(NumberText(entry.number));
    error.set_code(entry.code);
    error.set_error(entry.what);
    error.set_causes(entry.causes);
    error.set_action(entry.action);
    error.set_test(entry.test);
  }
  if (report->errors_size() == 0) {
    return {ExitCode::kUsage, nullptr, "",
            absl::StrCat("explain: got '", asked,
                         "', expected a number as it ends an error's text, such as EPD-1302, or a "
                         "code such as UNAVAILABLE; without one it lists all")};
  }
  std::string text = ExplainText(*report);
  return {ExitCode::kOk, std::move(report), std::move(text), ""};
}

}  // namespace epd::cli
