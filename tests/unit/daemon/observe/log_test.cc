// Goal: a line stays one line and its fields stay apart, whatever a client calls itself.
#include "daemon/observe/log.h"

#include "gtest/gtest.h"

namespace epd {
namespace {

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

TEST(LogTest, FileThatCannotBeOpenedIsAnError) {
  EXPECT_TRUE(absl::IsInvalidArgument(OpenLog("info", "/proc/no/such/file")));
}

}  // namespace
}  // namespace epd
