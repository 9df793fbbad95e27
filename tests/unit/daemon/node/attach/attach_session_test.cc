// Goal: only epd's user and root attach, and only with a version that both sides speak.
#include "daemon/node/attach/attach_session.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/node/attach/attach_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CheckPeerTest, OwnUserAndRootPassAndOthersAreNamed) {
  EXPECT_TRUE(CheckPeer(1000, 1000).ok());
  EXPECT_TRUE(CheckPeer(0, 1000).ok());
  const absl::Status other = CheckPeer(1001, 1000);
  EXPECT_TRUE(absl::IsPermissionDenied(other));
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("uid 1001"), HasSubstr("uid 1000")));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckPeer(1000, 0))) << "root's epd is not everybody's";
}

v1::Attach Range(uint32_t min, uint32_t max) {
  v1::Attach attach;
  attach.set_min_version(min);
  attach.set_max_version(max);
  return attach;
}

TEST(NegotiateVersionTest, HighestCommonVersionIsTaken) {
  uint32_t version = 0;
  ASSERT_TRUE(NegotiateVersion(Range(1, 9), &version).ok());
  EXPECT_EQ(version, limits::kProtocolVersion);
  ASSERT_TRUE(NegotiateVersion(Range(0, 1), &version).ok());
  EXPECT_EQ(version, 1u);
}

TEST(NegotiateVersionTest, WithoutOverlapBothRangesAndTheOldSideAreNamed) {
  uint32_t version = 0;
  const absl::Status newer = NegotiateVersion(Range(2, 3), &version);
  EXPECT_TRUE(absl::IsUnimplemented(newer));
  EXPECT_THAT(std::string(newer.message()),
              AllOf(HasSubstr("2..3"), HasSubstr("1..1"), HasSubstr("upgrade epd")));
  const absl::Status older = NegotiateVersion(Range(0, 0), &version);
  EXPECT_THAT(std::string(older.message()), HasSubstr("upgrade the client"));
  EXPECT_FALSE(NegotiateVersion(Range(3, 1), &version).ok()) << "a range the wrong way round";
}

TEST(ReadPeerTest, KernelNamesThePeerAndItsEndIsSeen) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  const absl::StatusOr<PeerCredentials> peer = ReadPeer(ours.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_TRUE(ProcessAlive(*peer));
}

}  // namespace
}  // namespace epd
