// Goal: every command line is either understood or refused with the reason; none is half
// understood.
#include "client/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::cli {
namespace {

using ::testing::HasSubstr;

Options Parsed(const std::vector<std::string>& args) {
  const ParsedOptions parsed = ParseOptions(args);
  EXPECT_TRUE(parsed.options.has_value()) << parsed.text;
  return parsed.options.value_or(Options());
}

std::string Refused(const std::vector<std::string>& args) {
  const ParsedOptions parsed = ParseOptions(args);
  EXPECT_FALSE(parsed.options.has_value());
  EXPECT_FALSE(parsed.is_help);
  return parsed.text;
}

TEST(ParseOptionsTest, HasDefaults) {
  const Options options = Parsed({"status"});
  EXPECT_EQ(options.command, "status");
  EXPECT_EQ(options.output, Output::kTable);
  EXPECT_EQ(options.timeout, absl::Seconds(5));
  EXPECT_FALSE(options.watch.has_value());
}

TEST(ParseOptionsTest, TakesCommonOptionsBeforeAndAfterTheCommand) {
  for (const auto& args : std::vector<std::vector<std::string>>{
           {"-o", "json", "--socket", "/x.sock", "--timeout=250ms", "ranks", "g"},
           {"ranks", "g", "-o", "json", "--socket", "/x.sock", "--timeout", "250ms"}}) {
    const Options options = Parsed(args);
    EXPECT_EQ(options.command, "ranks");
    EXPECT_EQ(options.group, "g");
    EXPECT_EQ(options.output, Output::kJson);
    EXPECT_EQ(options.socket, "/x.sock");
    EXPECT_EQ(options.timeout, absl::Milliseconds(250));
  }
}

TEST(ParseOptionsTest, WatchAloneIsTwoSecondsAndSwallowsNoWord) {
  const Options options = Parsed({"groups", "--watch", "train"});
  EXPECT_EQ(options.watch, absl::Seconds(2));
  EXPECT_EQ(options.group, "train");
  EXPECT_EQ(Parsed({"--watch=0.5", "status"}).watch, absl::Milliseconds(500));
  EXPECT_EQ(Parsed({"status", "--watch=1m", "--count", "3"}).watch_count, 3u);
}

TEST(ParseOptionsTest, TopGoesOnUnlessAScriptAsks) {
  EXPECT_EQ(Parsed({"top"}).watch, absl::Seconds(2));
  EXPECT_EQ(Parsed({"top", "--watch=5s"}).watch, absl::Seconds(5));
  EXPECT_FALSE(Parsed({"top", "--once"}).watch.has_value());
  EXPECT_FALSE(Parsed({"top", "-o", "json"}).watch.has_value());
  EXPECT_EQ(Parsed({"top", "--sort", "staging"}).order, 's');
  EXPECT_THAT(Refused({"top", "--sort", "colour"}), HasSubstr("--sort"));
}

TEST(ParseOptionsTest, DrainTakesADeadlineAndAnEpoch) {
  const Options options = Parsed({"drain", "g", "--deadline", "1m", "--epoch", "7"});
  EXPECT_EQ(options.drain_deadline, absl::Minutes(1));
  EXPECT_EQ(options.epoch, 7u);
}

TEST(ParseOptionsTest, WithoutACommandItIsAnOverviewOfTheStatus) {
  EXPECT_TRUE(Parsed({}).overview);
  EXPECT_EQ(Parsed({"--socket", "/x.sock"}).command, "status");
  EXPECT_FALSE(Parsed({"status"}).overview);
}

TEST(ParseOptionsTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Refused({"statsu"}), HasSubstr("statsu"));
  EXPECT_THAT(Refused({"status", "--verbose"}), HasSubstr("--verbose"));
  EXPECT_THAT(Refused({"status", "extra"}), HasSubstr("extra"));
  EXPECT_THAT(Refused({"status", "-o", "xml"}), HasSubstr("xml"));
  EXPECT_THAT(Refused({"status", "--timeout", "soon"}), HasSubstr("expected a time above zero"));
  EXPECT_THAT(Refused({"status", "--watch=-1s"}), HasSubstr("got '-1s'"));
  EXPECT_THAT(Refused({"drain"}), HasSubstr("group is required"));
  EXPECT_THAT(Refused({"status", "--socket", "/a", "--address", "h:1"}), HasSubstr("excludes"));
}

TEST(ParseOptionsTest, HelpNamesEveryExitCode) {
  const ParsedOptions parsed = ParseOptions({"--help"});
  EXPECT_TRUE(parsed.is_help);
  for (const char* code : {"0  ok", "1  unhealthy", "2  usage", "3  cannot connect", "4  version",
                           "5  denied", "6  deadline", "7  degraded"}) {
    EXPECT_THAT(parsed.text, HasSubstr(code));
  }
}

}  // namespace
}  // namespace epd::cli
