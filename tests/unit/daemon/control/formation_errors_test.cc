// Goal: what a whole group is told names who did what, and has the number under which it is explained.
#include "daemon/control/formation_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RankHolder Holder(uint32_t rank, int pid) {
  RankHolder holder;
  holder.rank = Rank(rank);
  holder.host = "h";
  holder.pid = pid;
  return holder;
}

TEST(FormationErrorsTest, ARankThatTwoProcessesClaimNamesBoth) {
  GroupSpec spec;
  spec.name = "g";
  const absl::Status twice = RankClaimedTwiceError(spec, Holder(3, 100), Holder(3, 200));
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(twice.message()),
              AllOf(HasSubstr("group=g"), HasSubstr("rank 3"), HasSubstr("pid=100"),
                    HasSubstr("pid=200"), HasSubstr("[EPD-1007]")));
}

}  // namespace
}  // namespace epd
