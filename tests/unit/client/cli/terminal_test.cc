// Goal: colours only where they are wanted and never on what clients named; the line of a long call says how far it is and
// promises no more than is known; without a command one is told what to ask next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "absl/synchronization/notification.h"
#include "client/cli/colours.h"
#include "client/cli/next_commands.h"
#include "client/cli/progress.h"
#include "tests/fakes/failing_threads.h"

namespace epd::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::function<const char*(const char*)> Environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST(ColoursTest, AreForTerminalsThatWantThem) {
  EXPECT_TRUE(UsesColours(true, Environment({})));
  EXPECT_TRUE(UsesColours(true, Environment({{"NO_COLOR", ""}, {"TERM", "xterm"}})));
  EXPECT_FALSE(UsesColours(true, Environment({{"NO_COLOR", "1"}})));
  EXPECT_FALSE(UsesColours(true, Environment({{"TERM", "dumb"}})));
  EXPECT_FALSE(UsesColours(false, Environment({})));
}

TEST(ColoursTest, MarkHealthProblemsAndFindings) {
  EXPECT_EQ(Coloured("health:   ok\n"), "health:   \033[32mok\033[0m\n");
  EXPECT_EQ(Coloured("health:  degraded, draining"), "health:  \033[33mdegraded\033[0m, draining");
  EXPECT_EQ(Coloured("a\nproblem: b\n"), "a\n\033[33mproblem:\033[0m b\n");
  EXPECT_EQ(Coloured("NOT OK  worker"), "\033[31mNOT OK\033[0m  worker");
  for (const char* text : {"health:", "health:   other", "ok    worker", "degraded  READY", ""})
    EXPECT_EQ(Coloured(text), text);
}

TEST(ProgressTest, EstimatesFromWhatWasDoneAndPromisesNoMoreThanTheLimit) {
  const absl::Duration limit = absl::Seconds(35);
  EXPECT_EQ(ProgressText("create g", absl::Seconds(2), limit, {}),
            "create g: 2s, at most 33s left");
  const std::vector<OpenOperations> open = {{absl::Seconds(1), 10}, {absl::Seconds(5), 6}};
  EXPECT_EQ(ProgressText("drain g", absl::Seconds(5), limit, open),
            "drain g: 5s, 6 of 10 operations open, about 6s left");
  const std::vector<OpenOperations> stuck = {{absl::Seconds(1), 10}, {absl::Seconds(5), 10}};
  EXPECT_THAT(ProgressText("drain g", absl::Seconds(5), limit, stuck),
              HasSubstr("at most 30s left"));
  const std::vector<OpenOperations> slow = {{absl::Seconds(1), 10}, {absl::Seconds(30), 9}};
  EXPECT_THAT(ProgressText("drain g", absl::Seconds(30), limit, slow),
              HasSubstr("at most 5s left"));
  EXPECT_THAT(ProgressText("doctor", absl::Seconds(40), limit, {}), Not(HasSubstr("left")));
}

TEST(ProgressTest, ALongCallIsShownAndItsLineTakenAway) {
  std::ostringstream terminal;
  absl::Notification shown;
  // Ends once it was asked how far it is, however slow the machine is.
  const Report report = WithProgress(
      "drain g", absl::Seconds(30),
      [&] {
        shown.WaitForNotification();
        return Report{ExitCode::kDeadline, nullptr, "", "cut off"};
      },
      [&]() -> std::optional<uint64_t> {
        if (!shown.HasBeenNotified()) shown.Notify();
        return 4;
      },
      terminal);
  EXPECT_EQ(report.code, ExitCode::kDeadline);
  EXPECT_THAT(terminal.str(), AllOf(HasSubstr("drain g: "), HasSubstr("4 of 4 operations open")));
  EXPECT_EQ(terminal.str().substr(terminal.str().size() - 4), "\r\033[K");
}

TEST(NextCommandsTest, DependOnWhatThereIs) {
  const auto of = [](uint32_t groups, epd::v1::Health health) {
    auto status = std::make_unique<epd::v1::GetStatusResponse>();
    status->set_num_groups(groups);
    status->set_health(health);
    return NextCommands({ExitCode::kOk, std::move(status), "", ""});
  };
  EXPECT_THAT(of(2, epd::v1::HEALTH_OK), AllOf(HasSubstr("epctl why "), Not(HasSubstr("doctor"))));
  EXPECT_THAT(of(0, epd::v1::HEALTH_OK), Not(HasSubstr("epctl why")));
  EXPECT_THAT(of(0, epd::v1::HEALTH_DEGRADED), HasSubstr("Next:\n  epctl doctor"));
  EXPECT_THAT(NextCommands({ExitCode::kCannotConnect, nullptr, "", "no daemon"}),
              AllOf(HasSubstr("epctl doctor"), HasSubstr("epd --help")));
}

TEST(ProgressTest, WithoutAThreadTheCommandRunsAndSaysNothingOfItsProgress) {
  std::ostringstream terminal;
  int num_runs = 0;
  epd::testing::g_threads_left = 0;
  WithProgress(
      "drain g", absl::Seconds(1),
      [&num_runs] {
        ++num_runs;
        return Report();
      },
      nullptr, terminal);
  epd::testing::g_threads_left = -1;
  EXPECT_EQ(num_runs, 1);
  EXPECT_EQ(terminal.str(), "");
}

}  // namespace
}  // namespace epd::cli
