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

PeerCredentials Peer(uid_t uid, std::vector<gid_t> gids = {}) {
  PeerCredentials peer;
  peer.uid = uid;
  peer.gids = std::move(gids);
  return peer;
}

TEST(CheckPeerTest, OwnUserAndRootPassAndOthersAreNamed) {
  EXPECT_TRUE(CheckPeer(Peer(1000), {.own = 1000}).ok());
  EXPECT_TRUE(CheckPeer(Peer(0), {.own = 1000}).ok());
  const absl::Status other = CheckPeer(Peer(1001), {.own = 1000});
  EXPECT_TRUE(absl::IsPermissionDenied(other));
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("uid 1001"), HasSubstr("uid 1000"), HasSubstr("attach_uids")));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckPeer(Peer(1000), {.own = 0})))
      << "root's epd is not everybody's";
}

TEST(CheckPeerTest, WhoIsListedPassesByUidAndByAnyOfItsGroups) {
  const AttachPolicy policy = {.own = 7, .uids = {1000, 1001}, .gids = {50}};
  EXPECT_TRUE(CheckPeer(Peer(1001, {1001}), policy).ok());
  EXPECT_TRUE(CheckPeer(Peer(1002, {1002, 50}), policy).ok());
  const absl::Status other = CheckPeer(Peer(1002, {1002, 51}), policy);
  EXPECT_TRUE(absl::IsPermissionDenied(other));
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("attach_uids=1000,1001"), HasSubstr("attach_gids=50")));
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
  EXPECT_THAT(peer->gids, testing::Contains(getegid()));
  EXPECT_TRUE(ProcessAlive(*peer));
}

}  // namespace
}  // namespace epd
