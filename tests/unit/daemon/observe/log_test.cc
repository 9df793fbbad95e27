// Goal: a line stays one line and its fields stay apart, whatever a client calls itself.
#include "daemon/observe/log.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(LogTest, PlainValuesStandBareAndOthersAreQuoted) {
  EXPECT_EQ(FormatLine("group transition",
                       {{"group", "g"}, {"epoch", 3}, {"why", "rank 2 is gone"}, {"to", ""}}),
            "event=\"group transition\" group=g epoch=3 why=\"rank 2 is gone\" to=\"\"");
}

TEST(LogTest, HostileValueCannotForgeALineOrAField) {
  EXPECT_EQ(FormatLine("x", {{"client", std::string("a\nerror event=\"fake\" b\\\x01")}}),
            "event=\"x\" client=\"a\\x0aerror event=\\\"fake\\\" b\\\\\\x01\"");
  EXPECT_EQ(FormatLine("x", {{"client", std::string("k=v")}}), "event=\"x\" client=\"k=v\"");
}

TEST(LogTest, TextOfOtherLanguagesStaysReadable) {
  EXPECT_EQ(FormatLine("x", {{"client", std::string("grün")}}), "event=\"x\" client=grün");
}

std::string Content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Written out by now.
std::string Logged(const std::string& path) {
  FlushLog(absl::Seconds(10));
  return Content(path);
}

TEST(LogTest, OpenedAgainItGoesOnInANewFileAndOneThatCannotBeOpenedChangesNothing) {
  const std::string path = testing::TempDir() + "/log_test.log";
  const std::string other = path + ".other";
  std::remove(path.c_str());
  std::remove(other.c_str());
  ASSERT_TRUE(OpenLog("info", path).ok());
  Log(LogLevel::kInfo, "first");
  Log(LogLevel::kInfo, "second");
  ASSERT_TRUE(OpenLog("warn", other).ok());
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarn, "third");
  EXPECT_TRUE(absl::IsInvalidArgument(OpenLog("info", "/proc/no/such/file")));
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kError, "fourth");
  EXPECT_THAT(Logged(path), AllOf(HasSubstr("first"), HasSubstr("second")));
  EXPECT_THAT(Logged(other),
              AllOf(HasSubstr("third"), HasSubstr("fourth"), Not(HasSubstr("quiet"))));
  ASSERT_TRUE(OpenLog("info", "").ok());
}

// Nobody has to tell epd: a private one hears no SIGHUP.
TEST(LogTest, AFileThatWasMovedAwayIsOpenedAnewByItself) {
  const std::string path = testing::TempDir() + "/rotated.log";
  std::remove(path.c_str());
  ASSERT_TRUE(OpenLog("info", path).ok());
  Log(LogLevel::kInfo, "first");
  EXPECT_THAT(Logged(path), HasSubstr("first"));
  ASSERT_EQ(std::rename(path.c_str(), (path + ".1").c_str()), 0);
  Log(LogLevel::kInfo, "second");
  EXPECT_THAT(Logged(path), AllOf(HasSubstr("second"), Not(HasSubstr("first"))));
  ASSERT_TRUE(OpenLog("info", "").ok());
}

TEST(LogTest, FileThatCannotBeOpenedIsAnError) {
  EXPECT_TRUE(absl::IsInvalidArgument(OpenLog("info", "/proc/no/such/file")));
}

TEST(LogTest, TheLastLinesAreAtHandWhereverTheLogGoes) {
  const std::string path = testing::TempDir() + "/recent_test.log";
  std::remove(path.c_str());
  ASSERT_TRUE(OpenLog("info", path).ok());
  Log(LogLevel::kInfo, "of old");
  const std::string filler(1000, 'x');
  for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "filler", {{"number", i}, {"text", filler}});
  Log(LogLevel::kWarn, "last", {{"client", std::string("no \xff UTF-8")}});
  const std::string recent = RecentLog();
  EXPECT_LE(recent.size(), kRecentLogBytes);
  EXPECT_GT(recent.size(), kRecentLogBytes / 2);
  EXPECT_THAT(recent, AllOf(HasSubstr("number=99"), Not(HasSubstr("of old")),
                            HasSubstr("event=\"last\" client=\"no ? UTF-8\"\n")));
}

}  // namespace
}  // namespace epd
