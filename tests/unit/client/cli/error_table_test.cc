// Goal: an error is found by its number and by its code, every code that epd says is explained, and the runbook's table is this
// one.
#include "client/cli/error_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "proto/epd/v1/code.h"

namespace epd::cli {
namespace {

using ::testing::Each;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ErrorTableTest, TheRunbookHasThisTable) {
  std::ostringstream runbook;
  runbook << std::ifstream("deploy/runbook.md").rdbuf();
  EXPECT_EQ(runbook.str(), WithErrorTable(runbook.str()))
      << "bazel run //client/cli:error_document -- $PWD/deploy/runbook.md";
  EXPECT_EQ(WithErrorTable("a text without a place for it"), "");
}

TEST(ErrorTableTest, EveryLineSaysAllAndIsOfOneCode) {
  std::set<std::string> codes = {"any"};
  for (int code = 0; code < kNumCodes; ++code) codes.insert(CodeName(static_cast<Code>(code)));
  int before = 0;
  for (const ErrorEntry& entry : ErrorTable()) {
    EXPECT_GT(entry.number, before);
    before = entry.number;
    EXPECT_TRUE(codes.count(entry.code) == 1) << entry.code;
    for (const std::string& text : {entry.what, entry.causes, entry.action, entry.test}) {
      EXPECT_THAT(text, Not(IsEmpty())) << NumberText(entry.number);
      EXPECT_EQ(text.find('|'), std::string::npos) << text;
    }
    if (entry.number < kNumCodes) {
      EXPECT_EQ(entry.code, CodeName(static_cast<Code>(entry.number)));
    }
  }
}

// OUT_OF_RANGE is gRPC's alone: epd says INVALID_ARGUMENT.
TEST(ErrorTableTest, EveryCodeIsExplainedUnderItsOwnNumber) {
  for (int code = 1; code < kNumCodes; ++code) {
    const bool is_said = static_cast<Code>(code) != Code::kOutOfRange;
    EXPECT_THAT(FindErrors(NumberText(code)), SizeIs(is_said ? 1 : 0));
  }
}

TEST(ErrorTableTest, AnErrorIsFoundByItsNumberHoweverItIsWritten) {
  for (const char* asked : {"EPD-1302", "epd-1302", "1302"}) {
    const std::vector<ErrorEntry> found = FindErrors(asked);
    ASSERT_THAT(found, SizeIs(1)) << asked;
    EXPECT_EQ(found[0].number, 1302);
  }
  EXPECT_THAT(FindErrors("unavailable"), Each(Field(&ErrorEntry::code, "UNAVAILABLE")));
  EXPECT_GT(FindErrors("UNAVAILABLE").size(), 3u);
  EXPECT_EQ(FindErrors("").size(), ErrorTable().size());
  for (const char* asked : {"EPD-9999", "NO_SUCH_CODE", "EPD-", "-1"})
    EXPECT_THAT(FindErrors(asked), IsEmpty()) << asked;
}

}  // namespace
}  // namespace epd::cli
