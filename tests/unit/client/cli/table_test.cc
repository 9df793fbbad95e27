// Goal: columns stand under their titles whatever the cells hold.
#include "client/cli/table.h"

#include <gtest/gtest.h>

namespace epd::cli {
namespace {

TEST(TableTest, AlignsNumbersRightAndWordsLeft) {
  Table table({{"NAME"}, {"N", Align::kRight}, {"HOST"}});
  table.AddRow({"a", "7", "x"});
  table.AddRow({"longer", "1,234", "y"});
  EXPECT_EQ(table.ToString(),
            "NAME        N  HOST\n"
            "a           7  x\n"
            "longer  1,234  y\n");
}

TEST(TableTest, ShowsAMissingCellAsADash) {
  Table table({{"A"}, {"B"}});
  table.AddRow({"", "x"});
  table.AddRow({"y"});
  EXPECT_EQ(table.ToString(), "A  B\n-  x\ny  -\n");
}

TEST(TableTest, CountsCharactersAndNotBytes) {
  Table table({{"A"}, {"B"}});
  table.AddRow({"\xC3\xA9", "x"});
  table.AddRow({"ab", "y"});
  EXPECT_EQ(table.ToString(), "A   B\n\xC3\xA9   x\nab  y\n");
}

TEST(TableTest, AClientsNameCannotBreakTheTableOrTheTerminal) {
  Table table({{"A"}});
  table.AddRow({"x\n\033[2Jy"});
  EXPECT_EQ(table.ToString(), "A\nx  [2Jy\n");
}

TEST(AlignedPairsTest, LeavesOutEmptyValues) {
  EXPECT_EQ(AlignedPairs({{"node", "n1"}, {"nothing at all", ""}, {"health", "ok"}}),
            "node:    n1\nhealth:  ok\n");
}

}  // namespace
}  // namespace epd::cli
