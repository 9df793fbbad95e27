// Goal: a user who is refused hears why and for how long, and comes back in when that is over.
#include "daemon/node/attach/refused_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::HasSubstr;

TEST(RefusedUsersTest, WhoIsRefusedHearsWhyAndForHowLongAndNobodyElseDoes) {
  RefusedUsers users;
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(users.Check(1001, now).ok());
  users.Refuse(1001, now + absl::Minutes(10), "uid=1001 has kept the worker waiting");
  const absl::Status refused = users.Check(1001, now + absl::Milliseconds(1500));
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(),
            "uid=1001 has kept the worker waiting; it may attach again in 9m59s");
  EXPECT_TRUE(users.Check(1002, now).ok());
  EXPECT_TRUE(users.Check(1001, now + absl::Minutes(10)).ok());
  EXPECT_TRUE(users.Check(1001, now).ok()) << "it was forgotten";
}

TEST(RefusedUsersTest, TheLastReasonCounts) {
  RefusedUsers users;
  const absl::Time now = absl::UnixEpoch();
  users.Refuse(1001, now + absl::Seconds(5), "once");
  users.Refuse(1001, now + absl::Seconds(50), "twice");
  EXPECT_THAT(std::string(users.Check(1001, now + absl::Seconds(20)).message()),
              HasSubstr("twice; it may attach again in 30s"));
}

}  // namespace
}  // namespace epd
