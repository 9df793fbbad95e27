// Goal: every session gets its own arenas to write and its peers' only to read, and no descriptor
// is kept for nothing.
#include "daemon/node/workers/pending_arenas.h"

#include <fcntl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace epd {
namespace {

const NodeId kHere{"here"};
const WorkerId kSelf{kHere, kCpuWorker};
constexpr GroupId kGroup(7);

RankHolder Member(uint32_t rank, const NodeId& node, uint64_t session) {
  RankHolder member;
  member.rank = Rank(rank);
  member.node = node;
  member.session = SessionId(session);
  return member;
}

v1::TenantReady Ready(uint64_t formation, std::vector<uint32_t> ranks) {
  v1::TenantReady ready;
  ready.set_group_id(kGroup.value);
  ready.set_formation(formation);
  for (const uint32_t rank : ranks) {
    v1::TenantReady::Arena& arena = *ready.add_arenas();
    arena.set_rank(rank);
    arena.set_bytes(100 + rank);
  }
  return ready;
}

ReplyJoined Reply(uint64_t formation, uint64_t session, std::vector<RankHolder> members) {
  ReplyJoined reply;
  reply.group = kGroup;
  reply.formation = Formation(formation);
  reply.session = SessionId(session);
  reply.members = std::move(members);
  return reply;
}

std::vector<UniqueFd> Fds(size_t count) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < count; ++i) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}

TEST(PendingArenasTest, OwnArenaIsWritableAndPeersAreReadOnly) {
  PendingArenas book;
  std::vector<UniqueFd> fds = Fds(4);
  const int own = fds[0].get();
  const int peers = fds[3].get();
  ASSERT_TRUE(book.Put(Ready(1, {0, 1}), std::move(fds)).ok());
  v1::Joined joined;
  const auto taken =
      book.Take(Reply(1, 10, {Member(0, kHere, 10), Member(1, kHere, 11)}), kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_EQ((*taken)[0]->get(), own);
  EXPECT_EQ((*taken)[1]->get(), peers);
  EXPECT_TRUE(joined.arenas(0).own());
  EXPECT_FALSE(joined.arenas(1).own());
  EXPECT_EQ(joined.arenas(1).bytes(), 101u);
}

TEST(PendingArenasTest, RanksOfOtherNodesHaveNoArenaHere) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(Ready(1, {1}), Fds(2)).ok());
  v1::Joined joined;
  const auto taken = book.Take(Reply(1, 10, {Member(0, NodeId{"there"}, 10), Member(1, kHere, 10)}),
                               kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(joined.arenas_size(), 1);
  EXPECT_TRUE(joined.arenas(0).own());
}

TEST(PendingArenasTest, RanksOfTheNodesOtherWorkersHaveNoArenaHere) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(Ready(1, {0}), Fds(2)).ok());
  RankHolder other = Member(1, kHere, 11);
  other.worker = WorkerName{1};
  v1::Joined joined;
  const auto taken = book.Take(Reply(1, 10, {Member(0, kHere, 10), other}), kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(joined.arenas_size(), 1);
  EXPECT_FALSE(book.Take(Reply(1, 10, {Member(0, kHere, 10)}), kSelf, joined).ok())
      << "its one session has been told";
}

TEST(PendingArenasTest, DescriptorsAreDroppedAfterTheLastLocalSession) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(Ready(1, {0, 1}), Fds(4)).ok());
  const std::vector<RankHolder> members = {Member(0, kHere, 10), Member(1, kHere, 11)};
  v1::Joined joined;
  for (const uint64_t session : {10, 10, 11}) {
    EXPECT_TRUE(book.Take(Reply(1, session, members), kSelf, joined).ok()) << session;
  }
  EXPECT_TRUE(absl::IsInternal(book.Take(Reply(1, 10, members), kSelf, joined).status()));
}

TEST(PendingArenasTest, OnlyTheAskedFormationIsHandedOut) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(Ready(1, {0}), Fds(2)).ok());
  ASSERT_TRUE(book.Put(Ready(2, {0}), Fds(2)).ok());
  v1::Joined joined;
  const std::vector<RankHolder> members = {Member(0, kHere, 10)};
  EXPECT_FALSE(book.Take(Reply(1, 10, members), kSelf, joined).ok());
  EXPECT_TRUE(book.Take(Reply(2, 10, members), kSelf, joined).ok());
}

TEST(PendingArenasTest, WrongNumberOfDescriptorsIsTheWorkersBug) {
  PendingArenas book;
  EXPECT_TRUE(absl::IsInternal(book.Put(Ready(1, {0, 1}), Fds(3))));
}

// Rank 0 is here, 1 and 3 on one other node, 2 on a second one.
v1::TenantReady WithLandingArenas() {
  v1::TenantReady ready = Ready(1, {0, 1, 2});
  for (const uint32_t rank : {1u, 3u}) ready.mutable_arenas(1)->add_landing_ranks(rank);
  ready.mutable_arenas(2)->add_landing_ranks(2);
  return ready;
}

std::vector<RankHolder> OverThreeNodes() {
  return {Member(0, kHere, 10), Member(1, NodeId{"b"}, 10), Member(2, NodeId{"c"}, 10),
          Member(3, NodeId{"b"}, 11)};
}

void ExpectLandingArenas(PendingArenas& book) {
  v1::Joined joined;
  const auto taken = book.Take(Reply(1, 10, OverThreeNodes()), kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->size(), 3u) << "one for each arena";
  ASSERT_EQ(joined.arenas_size(), 3);
  EXPECT_TRUE(joined.arenas(0).own());
  EXPECT_EQ(joined.arenas(0).landing_ranks_size(), 0);
  EXPECT_FALSE(joined.arenas(1).own());
  EXPECT_EQ(joined.arenas(1).bytes(), 101u);
  ASSERT_EQ(joined.arenas(1).landing_ranks_size(), 2);
  EXPECT_EQ(joined.arenas(1).landing_ranks(1), 3u);
  ASSERT_EQ(joined.arenas(2).landing_ranks_size(), 1);
}

TEST(PendingArenasTest, RanksOfAnotherNodeHaveOneArenaAndOneReadOnlyDescriptor) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(WithLandingArenas(), Fds(2 + 1 + 1)).ok());
  ExpectLandingArenas(book);
}

TEST(PendingArenasTest, WhoTakesLandingArenasForArenasOfOneRankIsSentTooFewDescriptors) {
  PendingArenas book;
  v1::TenantReady ready = WithLandingArenas();
  // As an epd that does not know the field.
  for (v1::TenantReady::Arena& arena : *ready.mutable_arenas()) arena.clear_landing_ranks();
  EXPECT_TRUE(absl::IsInternal(book.Put(ready, Fds(2 + 1 + 1))));
}

TEST(PendingArenasTest, ALandingArenaOfARankThatIsHereIsTheWorkersBug) {
  PendingArenas book;
  v1::TenantReady ready = WithLandingArenas();
  ready.mutable_arenas(0)->add_landing_ranks(0);
  ASSERT_TRUE(book.Put(ready, Fds(3)).ok());
  v1::Joined joined;
  EXPECT_TRUE(absl::IsInternal(book.Take(Reply(1, 10, OverThreeNodes()), kSelf, joined).status()));
}

TEST(PendingArenasTest, LandingArenasAreHandedOver) {
  PendingArenas book;
  ASSERT_TRUE(book.Put(WithLandingArenas(), Fds(2 + 1 + 1)).ok());
  OutgoingFds out;
  v1::HandoverWorker state;
  book.Save(state, out);
  // The same process goes on with the same numbers.
  for (v1::HandoverWorker::Arena& arena : *state.mutable_arenas(0)->mutable_arenas()) {
    if (arena.read_write_fd() > 0) arena.set_read_write_fd(dup(arena.read_write_fd()));
    arena.set_read_only_fd(dup(arena.read_only_fd()));
  }
  IncomingFds in;
  PendingArenas next;
  next.Restore(state, in);
  ExpectLandingArenas(next);
}

v1::TenantReady OnDevice(v1::TenantReady ready, v1::ArenaSharing sharing) {
  ready.set_stream_region_offset(0);
  ready.set_stream_region_bytes(4096);
  for (v1::TenantReady::Arena& arena : *ready.mutable_arenas()) {
    arena.set_sharing(sharing);
    arena.set_device_uuid("sixteen bytes...");
    if (sharing == v1::ARENA_SHARING_DEVICE_HANDLE) arena.set_handle(std::string(64, 'h'));
  }
  return ready;
}

TEST(PendingArenasTest, OfDeviceMemoryASessionGetsItsOwnAloneWhereTheWorkerMovesTheRows) {
  PendingArenas book;
  std::vector<UniqueFd> fds = Fds(4);
  const int own = fds[0].get();
  ASSERT_TRUE(
      book.Put(OnDevice(Ready(1, {0, 1}), v1::ARENA_SHARING_DEVICE_DESCRIPTOR), std::move(fds))
          .ok());
  ReplyJoined reply = Reply(1, 10, {Member(0, kHere, 10), Member(1, kHere, 11)});
  reply.spec.executor = Executor::kWorker;
  v1::Joined joined;
  const auto taken = book.Take(reply, kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ(taken->at(0)->get(), own);
  ASSERT_EQ(joined.arenas_size(), 1);
  EXPECT_EQ(joined.arenas(0).sharing(), v1::ARENA_SHARING_DEVICE_DESCRIPTOR);
  EXPECT_EQ(joined.arenas(0).device_uuid(), "sixteen bytes...");
  EXPECT_EQ(joined.stream_region_bytes(), 4096u);
}

TEST(PendingArenasTest, AnArenaWithAHandleHasNoDescriptors) {
  PendingArenas book;
  const v1::TenantReady ready = OnDevice(Ready(1, {0}), v1::ARENA_SHARING_DEVICE_HANDLE);
  EXPECT_FALSE(book.Put(ready, Fds(2)).ok());
  ASSERT_TRUE(book.Put(ready, {}).ok());
  v1::Joined joined;
  const auto taken = book.Take(Reply(1, 10, {Member(0, kHere, 10)}), kSelf, joined);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(taken->empty());
  EXPECT_EQ(joined.arenas(0).handle().size(), 64u);
}

}  // namespace
}  // namespace epd
