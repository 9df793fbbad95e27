#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/command_line.h"

namespace epd::cli {
namespace {

// What roff would take for its own is written so that it shows as it is.
std::string Roff(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (!out.empty() && (out[0] == '.' || out[0] == '\'')) out.insert(0, "\\&");
  return out;
}

std::string Options(const std::vector<OptionText>& options) {
  std::string text;
  for (const OptionText& option : options) {
    const std::string names =
        absl::StrJoin(option.names, ", ", [](std::string* out, const std::string& name) {
          absl::StrAppend(out, "\\fB", Roff(name), "\\fR");
        });
    const std::string value =
        option.value.empty() ? "" : absl::StrCat(" \\fI", Roff(option.value), "\\fR");
    absl::StrAppend(&text, ".TP\n", names, value, "\n", Roff(option.help), "\n");
  }
  return text;
}

std::string Heading(const CommandText& command) {
  std::string text = absl::StrCat("\\fBepctl ", Roff(command.name), "\\fR");
  if (!command.positional.has_value()) return text;
  const std::string name =
      absl::StrCat("\\fI", Roff(absl::AsciiStrToUpper(command.positional->names[0])), "\\fR");
  return absl::StrCat(text, " ", command.needs_positional ? name : absl::StrCat("[", name, "]"));
}

// A line per code: "  3  cannot connect: ...".
std::string ExitCodes(const std::string& help) {
  std::string text;
  for (const absl::string_view each : absl::StrSplit(help, '\n')) {
    const std::string line(absl::StripAsciiWhitespace(each));
    const size_t space = line.find("  ");
    if (space == std::string::npos) continue;
    absl::StrAppend(&text, ".TP\n.B ", line.substr(0, space), "\n", Roff(line.substr(space + 2)),
                    "\n");
  }
  return text;
}

}  // namespace

std::string ManPage(const CommandLine& line, const std::string& version) {
  std::string text =
      absl::StrCat(".TH EPCTL 1 \"\" \"epd ", Roff(version), "\" \"User Commands\"\n.SH NAME\n",
                   Roff(absl::StrReplaceAll(line.help, {{"epctl: ", "epctl - "}})),
                   "\n.SH SYNOPSIS\n.B epctl\n[\\fIoptions\\fR] [\\fIcommand\\fR]\n",
                   ".PP\nWithout a command it shows the daemon's status and what to ask next.\n",
                   ".SH OPTIONS\nThey stand before or after the command.\n", Options(line.options),
                   ".SH COMMANDS\n");
  for (const CommandText& command : line.commands) {
    absl::StrAppend(&text, ".SS ", Heading(command), "\n", Roff(command.help), "\n",
                    Options(command.options));
  }
  absl::StrAppend(&text, ".SH EXIT STATUS\n", ExitCodes(line.exit_codes),
                  ".SH ENVIRONMENT\n.TP\n.B EPD_SOCKET\nthe daemon's attach socket\n"
                  ".TP\n.B EPD_TLS_CA, EPD_TLS_CERT, EPD_TLS_KEY\nas the options of these names\n"
                  ".TP\n.B NO_COLOR\nif it is set and not empty, no colours are used\n");
  return text;
}

}  // namespace epd::cli
