// Goal: every command, option and known value of the command line is in each shell's script and in the manual, quoted so that no
// text of the help is taken for the shell's or roff's own. What real shells make of it: tests/integration/cli/test_shells.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/command_line.h"
#include "client/cli/options.h"

namespace epd::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Printed(const std::vector<std::string>& args) {
  const ParsedOptions parsed = ParseOptions(args);
  EXPECT_TRUE(parsed.is_help) << parsed.text;
  return parsed.text;
}

TEST(CompletionTest, EveryShellKnowsCommandsOptionsAndValues) {
  for (const char* shell : kShells) {
    const std::string script = Printed({"completion", shell});
    for (const char* word : {"status", "drain", "completion", "explain", "all-nodes",
                             "recv-capacity-per-rank", "operations bytes failed waits staging name",
                             "table json", "float32 bfloat16 float16", "bash zsh fish", "EPD-1302"})
      EXPECT_THAT(script, HasSubstr(word)) << shell;
  }
}

TEST(CompletionTest, AnotherShellIsRefusedWithThoseThatThereAre) {
  const ParsedOptions refused = ParseOptions({"completion", "csh"});
  EXPECT_FALSE(refused.is_help);
  EXPECT_THAT(refused.text, HasSubstr("csh"));
  EXPECT_THAT(ParseOptions({"completion"}).text, HasSubstr("shell"));
}

CommandLine Hostile() {
  CommandLine line;
  line.help = "epctl: 'all' \\fBof it";
  line.options = {{{"-o", "--output"}, "FORMAT", "it's [a] $(b): c", {"table", "json"}}};
  line.commands = {{"status", ".what it's", std::nullopt, false, {}}};
  line.exit_codes = "Exit codes:\n  0  ok\n";
  return line;
}

TEST(CompletionTest, TextsAreQuoted) {
  EXPECT_THAT(CompletionScript(Hostile(), "fish"), HasSubstr("-d 'it'\\''s [a] $(b): c'"));
  EXPECT_THAT(CompletionScript(Hostile(), "zsh"), HasSubstr("it'\\''s \\[a\\] $(b)\\: c"));
  EXPECT_THAT(CompletionScript(Hostile(), "bash"), Not(HasSubstr("$(b)")));
}

TEST(ManPageTest, HasEveryCommandAndShowsTextsAsTheyAre) {
  const std::string page = Printed({"man"});
  for (const char* text :
       {".TH EPCTL 1", ".SS \\fBepctl drain\\fR \\fIGROUP\\fR", ".SS \\fBepctl groups\\fR [",
        "\\fB\\-\\-deadline\\fR \\fITIME\\fR", ".B 7\n", "NO_COLOR"})
    EXPECT_THAT(page, HasSubstr(text));
  const std::string hostile = ManPage(Hostile(), "1");
  EXPECT_THAT(hostile, HasSubstr("\\efBof"));
  EXPECT_THAT(hostile, HasSubstr("\n\\&.what"));
}

}  // namespace
}  // namespace epd::cli
