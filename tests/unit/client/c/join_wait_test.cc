// Goal: a client does not give up a Join that the daemon still waits for.
#include "client/c/join_wait.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace epd::client {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr seconds kGrace{10};

TEST(JoinWaitTest, GoesByTheNearestThatSaysIt) {
  Join join;
  Attached daemon;
  EXPECT_EQ(JoinWait(join, daemon), minutes(5) + kGrace) << "nobody says it";
  daemon.form = nanoseconds(minutes(30)).count();
  EXPECT_EQ(JoinWait(join, daemon), minutes(30) + kGrace);
  join.spec.deadlines.form = nanoseconds(minutes(20)).count();
  EXPECT_EQ(JoinWait(join, daemon), minutes(20) + kGrace);
  join.deadline = nanoseconds(seconds(3)).count();
  EXPECT_EQ(JoinWait(join, daemon), seconds(3) + kGrace);
}

TEST(JoinWaitTest, HasAnEnd) {
  Join join;
  join.deadline = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(JoinWait(join, {}), hours(24 * 365) + kGrace);
}

}  // namespace
}  // namespace epd::client
