// Goal: the last operations of a group's ranks stand side by side, so that the odd rank is seen at
// a glance, in 100 columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

epd::v1::PastOperation& Add(epd::v1::ExplainGroupResponse& why, uint32_t rank, int number,
                            int64_t age_s, const std::string& phase,
                            const std::string& fingerprint = "00112233aabbccdd") {
  epd::v1::RankPast* past = nullptr;
  for (epd::v1::RankPast& one : *why.mutable_past()) {
    if (one.rank() == rank) past = &one;
  }
  if (past == nullptr) {
    past = why.add_past();
    past->set_rank(rank);
    why.mutable_group()->add_ranks()->set_rank(rank);
  }
  epd::v1::PastOperation& operation = *past->add_operations();
  operation.set_kind("dispatch");
  operation.set_key(
      absl::StrCat("program=1a2b3c4d5e6f execution=", number, " ordinal=1 occurrence=0"));
  operation.set_fingerprint(fingerprint);
  operation.set_phase(phase);
  operation.mutable_age()->set_seconds(age_s);
  return operation;
}

TEST(PastTableTest, ARankThatIsLateHasAColumnOfItsOwn) {
  epd::v1::ExplainGroupResponse why;
  for (const uint32_t rank : {0u, 1u, 3u}) Add(why, rank, 9, 75, "announce");
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (int number = 8; number > 0; --number) Add(why, rank, number, 90 - number, "done");
  }
  EXPECT_EQ(PastText(why, false),
            "last operations, newest first; a call is program, scope or name, "
            "execution.ordinal.occurrence:\n"
            "BEGUN  KIND      CALL                FINGERPRINT  R 0-1,3   R 2\n"
            "1m15s  dispatch  1a2b3c4d5e6f 9.1.0  00112233     announce  -\n"
            "1m22s  dispatch  1a2b3c4d5e6f 8.1.0  00112233     done      done\n"
            "1m23s  dispatch  1a2b3c4d5e6f 7.1.0  00112233     done      done\n"
            "1m24s  dispatch  1a2b3c4d5e6f 6.1.0  00112233     done      done\n"
            "and 5 before, done by all ranks (--history lists them)\n");
  EXPECT_THAT(PastText(why, true), HasSubstr("1a2b3c4d5e6f 1.1.0"));
}

TEST(PastTableTest, ACallOfAProgramIsNamedByItsScope) {
  epd::v1::ExplainGroupResponse why;
  Add(why, 0, 9, 75, "announce")
      .set_key("program=1a2b3c4d5e6f scope=layer_3/out execution=9 ordinal=1 occurrence=0");
  EXPECT_THAT(PastText(why, false), HasSubstr("dispatch  layer_3/out 9.1.0  00112233"));
  EXPECT_THAT(PastText(why, false), Not(HasSubstr("1a2b3c4d5e6f")));
  Add(why, 0, 10, 74, "announce")
      .set_key(
          "program=1a2b scope=decoder/mixture/experts/out execution=10 ordinal=1 occurrence=0");
  EXPECT_THAT(PastText(why, false), HasSubstr("dispatch  ..e/experts/out 10.1.0"));
}

TEST(PastTableTest, CallsOfOneKeyWithOtherFingerprintsDiffer) {
  epd::v1::ExplainGroupResponse why;
  Add(why, 0, 1, 5, "failed in announce");
  Add(why, 1, 1, 5, "failed in announce", "ffff");
  EXPECT_THAT(PastText(why, false), HasSubstr("differ       failed"));
}

TEST(PastTableTest, ARankThatIsAheadDoesNotMakeTheOthersLookOdd) {
  epd::v1::ExplainGroupResponse why;
  for (int number = 64; number > 0; --number) Add(why, 0, number, 100 - number, "done");
  for (int number = 63; number >= 0; --number) Add(why, 1, number, 100 - number, "done");
  EXPECT_THAT(PastText(why, true), Not(HasSubstr("5e6f 0.1.0")))
      << "rank 0 has forgotten it, because it is one ahead";
}

TEST(PastTableTest, ManyRanksInManyPhasesStayWithin100Columns) {
  epd::v1::ExplainGroupResponse why;
  for (uint32_t rank = 0; rank < 300; ++rank) {
    Add(why, rank, static_cast<int>(rank), 1000 + rank, "failed in announce")
        .set_kind("dispatch_backward");
    Add(why, rank, 1234567, 100, rank % 3 == 0 ? "publish" : "announce")
        .set_key(std::string("name=") + std::string(40, 'x'));
  }
  std::istringstream lines(PastText(why, true));
  std::string line;
  size_t num_lines = 0;
  while (std::getline(lines, line)) {
    EXPECT_LE(line.size(), 100u) << line;
    ++num_lines;
  }
  EXPECT_GT(num_lines, 100u);
}

TEST(PastTableTest, NothingIsSaidOfAGroupThatHasDoneNothing) { EXPECT_EQ(PastText({}, false), ""); }

}  // namespace
}  // namespace epd::cli
