// Goal: of a group over several nodes a worker takes those members for near that are of its node, and no others, so that two
// workers of a node always take each other for the same; ranks are numbered by members in the order of their first.
#include "daemon/worker/shell/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kElsewhere = CommunicatorMember::kElsewhere;

struct Server {
  std::string node;
  int device = 0;
};

// As epd tells it to the worker of `self`; `of_rank`: its place among the servers.
TenantStart Start(const std::vector<Server>& servers, const std::vector<size_t>& of_rank,
                  size_t self) {
  TenantStart start;
  start.epoch = Epoch(3);
  start.communicator = GroupId(5);
  const auto name = [&](size_t i) { return WorkerName{servers[i].device}; };
  for (size_t i = 0; i < servers.size(); ++i) {
    start.nodes.push_back({.name = NodeId{servers[i].node},
                           .worker = Incarnation(100 + i),
                           .address = "",
                           .worker_name = name(i)});
  }
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    RankHolder holder;
    holder.rank = Rank(static_cast<uint32_t>(rank));
    holder.node = NodeId{servers[of_rank[rank]].node};
    if (of_rank[rank] == self) holder.session = SessionId(9);
    holder.worker = name(of_rank[rank]);
    start.members.push_back(std::move(holder));
  }
  return start;
}

TEST(MembershipTest, MembersStandInTheOrderOfTheirFirstRanks) {
  const std::vector<Server> servers = {{"a", 0}, {"a", 1}, {"b", 0}};
  const Membership of = MembershipOf(Start(servers, {2, 0, 2, 1, 0}, 0)).value();
  EXPECT_THAT(of.member_of_rank, ElementsAre(0, 1, 0, 2, 1));
  EXPECT_THAT(of.in.workers, ElementsAre(102, 100, 101));
  EXPECT_EQ(of.in.self, 1);
  EXPECT_EQ(of.in.num_ranks, 5u);
  EXPECT_EQ(of.in.communicator, 5u);
  EXPECT_EQ(of.in.epoch, 3u);
}

TEST(MembershipTest, NearAreThoseOfTheNodeWhoeverAsks) {
  const std::vector<Server> servers = {{"a", 0}, {"a", 2}, {"b", 0}, {"b", 1}};
  const std::vector<size_t> of_rank = {0, 1, 2, 3};
  const auto devices = [&](size_t self) {
    return MembershipOf(Start(servers, of_rank, self)).value().in.devices;
  };
  EXPECT_THAT(devices(0), ElementsAre(0, 2, kElsewhere, kElsewhere));
  EXPECT_THAT(devices(1), ElementsAre(0, 2, kElsewhere, kElsewhere));
  EXPECT_THAT(devices(2), ElementsAre(kElsewhere, kElsewhere, 0, 1));
  const Membership all = MembershipOf(Start(servers, of_rank, 3)).value();
  EXPECT_EQ(all.in.num_near(), 2u);
  EXPECT_FALSE(all.in.all_near());
}

TEST(MembershipTest, OnOneNodeAllAreNear) {
  const std::vector<Server> servers = {{"a", 3}, {"a", 1}};
  const Membership of = MembershipOf(Start(servers, {0, 1, 0}, 1)).value();
  EXPECT_THAT(of.in.devices, ElementsAre(3, 1));
  EXPECT_TRUE(of.in.all_near());
}

TEST(MembershipTest, ARankWhoseWorkerHasNoRunIsNamed) {
  TenantStart start = Start({{"a", 0}, {"b", 1}}, {0, 1}, 0);
  start.nodes.pop_back();
  const absl::Status refused = MembershipOf(start).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("b"), HasSubstr("of rank 1 has no run in this epoch")));
}

}  // namespace
}  // namespace epd
