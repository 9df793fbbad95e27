// Goal: what workers plan to send each other is, byte for byte and in order, what a count of single
// routes says that they need, and both sides of every pair plan the same.
#include "daemon/backend/cuda/members/member_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "kernels/cuda/landing.h"
#include "proto/epd/v1/region_layout.h"

namespace epd::cuda {
namespace {

using ::testing::IsEmpty;

// A random exchange, route by route.
struct Problem {
  struct Route {
    int source = 0;  // Of the token.
    int64_t token = 0;
    int expert = 0;
    int64_t slot = 0;  // At the expert's owner.
  };

  explicit Problem(uint32_t seed) : random(seed) {
    shape.spec.num_ranks = Between(1, 7);
    shape.spec.num_experts = Between(1, 12);
    shape.spec.top_k = Between(1, std::min(4, shape.spec.num_experts));
    shape.spec.alignment = 1 << Between(0, 4);
    shape.spec.max_tokens = 9;
    shape.row_bytes = static_cast<uint64_t>(Between(1, 5)) * 2;
    const int num_members = Between(1, shape.spec.num_ranks);
    for (int r = 0; r < shape.spec.num_ranks; ++r) {
      // Every member has a rank; which ones is not in order.
      shape.member_of_rank.push_back(r < num_members ? r : Between(0, num_members - 1));
      shape.recv_capacity.push_back(static_cast<uint64_t>(Between(0, 40)));
    }
    std::shuffle(shape.member_of_rank.begin(), shape.member_of_rank.end(), random);
    if (Between(0, 1) == 1) {
      for (int e = 0; e < shape.spec.num_experts; ++e) {
        owners.push_back(Between(0, shape.spec.num_ranks - 1));
      }
      shape.spec.expert_owner = owners.data();
    }
    MakeRoutes();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

  void MakeRoutes() {
    counts.resize(static_cast<size_t>(shape.spec.num_ranks * shape.spec.num_experts));
    tokens_between.resize(static_cast<size_t>(shape.spec.num_ranks * shape.spec.num_ranks));
    for (int s = 0; s < shape.spec.num_ranks; ++s) {
      const int tokens = Between(0, static_cast<int>(shape.spec.max_tokens));
      for (int t = 0; t < tokens; ++t) {
        std::set<int> experts;
        for (int k = 0; k < shape.spec.top_k; ++k) {
          if (Between(0, 4) > 0) experts.insert(Between(0, shape.spec.num_experts - 1));
        }
        for (const int e : experts) {
          routes.push_back({s, t, e, 0});
          ++counts[static_cast<size_t>(s * shape.spec.num_experts + e)];
        }
        std::set<int> ranks;
        for (const int e : experts) ranks.insert(ExpertOwner(shape.spec, e));
        for (const int rank : ranks)
          ++tokens_between[static_cast<size_t>(s * shape.spec.num_ranks + rank)];
      }
    }
    // Zones by expert, in them by source and token, each a multiple of the alignment long.
    for (int owner = 0; owner < shape.spec.num_ranks; ++owner) {
      int64_t slot = 0;
      for (int e = 0; e < shape.spec.num_experts; ++e) {
        if (ExpertOwner(shape.spec, e) != owner) continue;
        for (Route& route : routes) {  // Made by source and token.
          if (route.expert == e) route.slot = slot++;
        }
        while (slot % shape.spec.alignment != 0) ++slot;
      }
    }
  }
  int MemberOf(int rank) const { return shape.member_of_rank[static_cast<size_t>(rank)]; }
  int num_members() const {
    return *std::max_element(shape.member_of_rank.begin(), shape.member_of_rank.end()) + 1;
  }
  // What `self` was told of tokens: those between other members' ranks may be anything.
  void Tell(int self) {
    shape.tokens_between = tokens_between;
    for (int s = 0; s < shape.spec.num_ranks; ++s) {
      for (int d = 0; d < shape.spec.num_ranks; ++d) {
        if (MemberOf(s) == self || MemberOf(d) == self) continue;
        shape.tokens_between[static_cast<size_t>(s * shape.spec.num_ranks + d)] =
            static_cast<uint32_t>(random());
      }
    }
  }
  MemberTraffic Plan(shm::Kind kind, bool has_weights, int self) {
    shape.kind = kind;
    shape.has_weights = has_weights;
    if (tells) Tell(self);
    return PlanMemberTraffic(shape, counts.data(), self);
  }

  std::mt19937 random;
  TrafficShape shape;
  std::vector<int> owners;
  std::vector<int32_t> counts;
  std::vector<uint32_t> tokens_between;  // [R, R]
  bool tells = true;
  std::vector<Route> routes;
};

struct Call {
  shm::Kind kind;
  bool has_weights;
};
const Call kCalls[] = {{shm::Kind::kPrepare, false},
                       {shm::Kind::kDispatch, true},
                       {shm::Kind::kCombine, false},
                       {shm::Kind::kDispatchBackward, true},
                       {shm::Kind::kCombineBackward, false}};

using Piece = std::pair<int, uint64_t>;  // Rank, bytes.

// Sends of `from` to `to`, or what `to` receives of it; all lie elsewhere on each side.
std::vector<Piece> Between(const MemberTraffic& of, int peer, bool sends) {
  std::vector<Piece> pieces;
  for (const Transfer& t : of.transfers) {
    if (t.peer == peer && t.sends == sends) pieces.emplace_back(t.rank, t.bytes);
  }
  return pieces;
}

constexpr uint32_t kNumProblems = 300;

NoShared shared_;

// Whatever was told of tokens, as long as both sides were told the same.
TEST(MemberTrafficTest, BothSidesOfEveryPairPlanTheSameSizesInTheSameOrder) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    problem.tells = seed % 3 > 0;
    for (uint32_t& one : problem.tokens_between) {
      if (seed % 3 == 2) one = static_cast<uint32_t>(problem.random()) >> problem.Between(0, 31);
    }
    for (const Call& call : kCalls) {
      std::vector<MemberTraffic> all;
      for (int m = 0; m < problem.num_members(); ++m) {
        all.push_back(problem.Plan(call.kind, call.has_weights, m));
      }
      for (int a = 0; a < problem.num_members(); ++a) {
        EXPECT_THAT(Between(all[static_cast<size_t>(a)], a, true), IsEmpty());
        for (int b = 0; b < problem.num_members(); ++b) {
          EXPECT_EQ(Between(all[static_cast<size_t>(a)], b, true),
                    Between(all[static_cast<size_t>(b)], a, false))
              << "seed " << seed << " kind " << static_cast<int>(call.kind);
        }
      }
    }
  }
}

TEST(MemberTrafficTest, APrepareSendsEveryRowOfCountsToEveryOtherMemberOnce) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    const uint64_t row = static_cast<uint64_t>(problem.shape.spec.num_experts) * 4;
    for (int m = 0; m < problem.num_members(); ++m) {
      std::multiset<std::tuple<int, bool, uint64_t>> expected;
      for (int r = 0; r < problem.shape.spec.num_ranks; ++r) {
        const uint64_t at = static_cast<uint64_t>(r) * row;
        if (problem.MemberOf(r) != m) expected.emplace(problem.MemberOf(r), false, at);
        for (int peer = 0; peer < problem.num_members(); ++peer) {
          if (problem.MemberOf(r) == m && peer != m) expected.emplace(peer, true, at);
        }
      }
      std::multiset<std::tuple<int, bool, uint64_t>> planned;
      for (const Transfer& t : problem.Plan(shm::Kind::kPrepare, false, m).transfers) {
        EXPECT_EQ(t.bytes, row);
        planned.emplace(t.peer, t.sends, t.offset);
      }
      EXPECT_EQ(planned, expected) << "seed " << seed;
    }
  }
}

// As many rows as there are tokens, once they were told; else as there are routes, or tokens in a call.
TEST(MemberTrafficTest, AScatterHasALandingForEveryPairOfRanksWithRowsAndNoneOverlap) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    const RoutingSpec& spec = problem.shape.spec;
    problem.tells = seed % 2 == 0;
    std::map<std::pair<int, int>, int64_t> rows;
    std::set<std::tuple<int, int64_t, int>> seen;  // By source, token and destination.
    for (const Problem::Route& route : problem.routes) {
      const int owner = ExpertOwner(spec, route.expert);
      const bool first = seen.emplace(route.source, route.token, owner).second;
      rows[{route.source, owner}] += problem.tells && !first ? 0 : 1;
    }
    for (int m = 0; m < problem.num_members(); ++m) {
      const MemberTraffic traffic = problem.Plan(shm::Kind::kDispatch, true, m);
      ASSERT_EQ(traffic.landings.size(), static_cast<size_t>(spec.num_ranks * spec.num_ranks));
      uint64_t end = 0;
      std::set<uint64_t> moved;
      for (int s = 0; s < spec.num_ranks; ++s) {
        for (int d = 0; d < spec.num_ranks; ++d) {
          const auto& landing = traffic.landings[static_cast<size_t>(s * spec.num_ranks + d)];
          const bool mine = problem.MemberOf(s) == m || problem.MemberOf(d) == m;
          const int64_t bound = std::min<int64_t>(rows[{s, d}], spec.max_tokens);
          ASSERT_EQ(landing.bytes, !mine || bound == 0
                                       ? 0
                                       : LandingBytes(bound, spec.top_k, problem.shape.row_bytes));
          ASSERT_EQ(landing.max_rows, landing.bytes == 0 ? 0 : bound);
          if (landing.bytes == 0) continue;
          EXPECT_GE(landing.offset, end);
          EXPECT_EQ(landing.offset % 64, 0u);
          end = landing.offset + landing.bytes;
          if (problem.MemberOf(s) != problem.MemberOf(d)) moved.insert(landing.offset);
        }
      }
      EXPECT_LE(end, traffic.landing_bytes);
      std::set<uint64_t> planned;
      for (const Transfer& t : traffic.transfers) planned.insert(t.offset);
      EXPECT_EQ(planned, moved);
      EXPECT_EQ(planned.size(), traffic.transfers.size());
    }
  }
}

// Slots of a rank's stage that the ranks of a member have filled, in order.
std::vector<int64_t> SlotsFor(const Problem& problem, int rank, int member) {
  const auto capacity =
      static_cast<int64_t>(problem.shape.recv_capacity[static_cast<size_t>(rank)]);
  std::vector<int64_t> slots;
  for (const Problem::Route& route : problem.routes) {
    if (ExpertOwner(problem.shape.spec, route.expert) != rank) continue;
    if (problem.MemberOf(route.source) != member || route.slot >= capacity) continue;
    slots.push_back(route.slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

uint64_t MessageBytes(const Problem& problem, size_t num_rows, bool has_weights) {
  return shm::OutBytes(num_rows * problem.shape.row_bytes, has_weights ? num_rows : 0);
}

// What PackRows puts where, row by row: the bytes' place, the weight's, and the slot that they are of.
std::map<uint64_t, std::pair<uint64_t, int64_t>> Packed(const PackedRows& packed,
                                                        uint64_t row_bytes) {
  std::map<uint64_t, std::pair<uint64_t, int64_t>> places;
  for (size_t i = 0; i < packed.packs.size(); ++i) {
    const PackRun& run = packed.packs[i];
    const int64_t end = i + 1 < packed.packs.size() ? packed.packs[i + 1].row : packed.num_rows;
    for (int64_t k = 0; k < end - run.row; ++k) {
      const auto at = static_cast<uint64_t>(k);
      places[run.rows_at + at * row_bytes] = {run.weights_at + at * 4, run.slot + k};
    }
  }
  return places;
}

TEST(MemberTrafficTest, AGatherPacksWhatTheOtherMemberFilledIntoOneMessageAndNothingElse) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    const uint64_t row = problem.shape.row_bytes;
    for (const bool has_weights : {false, true}) {
      const shm::Kind kind = has_weights ? shm::Kind::kDispatchBackward : shm::Kind::kCombine;
      for (int m = 0; m < problem.num_members(); ++m) {
        const MemberTraffic traffic = problem.Plan(kind, has_weights, m);
        std::set<std::pair<int, int>> seen;  // Rank and peer.
        std::map<int, size_t> num_packed;
        uint64_t end = 0;
        for (const Transfer& t : traffic.transfers) {
          if (!t.sends) continue;
          EXPECT_EQ(problem.MemberOf(t.rank), m);
          EXPECT_EQ(t.place, TrafficPlace::kMessages);
          EXPECT_TRUE(seen.emplace(t.rank, t.peer).second) << "two messages to one member";
          EXPECT_EQ(t.offset % 64, 0u);
          EXPECT_GE(t.offset, end);
          end = t.offset + t.bytes;
          const std::vector<int64_t> slots = SlotsFor(problem, t.rank, t.peer);
          ASSERT_EQ(t.bytes, MessageBytes(problem, slots.size(), has_weights)) << "seed " << seed;
          const auto places = Packed(traffic.packed[static_cast<size_t>(t.rank)], row);
          for (size_t i = 0; i < slots.size(); ++i) {
            const auto at = places.find(t.offset + i * row);
            ASSERT_NE(at, places.end());
            EXPECT_EQ(at->second.second, slots[i]);
            if (!has_weights) continue;
            EXPECT_EQ(at->second.first,
                      t.offset + shm::OutWeightsOffset(slots.size() * row) + i * 4);
          }
          num_packed[t.rank] += slots.size();
        }
        EXPECT_LE(end, traffic.message_bytes);
        for (int rank = 0; rank < problem.shape.spec.num_ranks; ++rank) {
          if (problem.MemberOf(rank) != m) continue;
          const PackedRows& packed = traffic.packed[static_cast<size_t>(rank)];
          EXPECT_EQ(static_cast<size_t>(packed.num_rows), num_packed[rank])
              << "some row goes twice";
          for (int peer = 0; peer < problem.num_members(); ++peer) {
            const bool sends = peer != m && !SlotsFor(problem, rank, peer).empty();
            EXPECT_EQ(seen.count({rank, peer}), sends ? 1u : 0u) << "seed " << seed;
          }
        }
      }
    }
  }
}

TEST(MemberTrafficTest, WhatAMessageHasIsFoundBySlotAndNoOtherSlotIs) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    for (int m = 0; m < problem.num_members(); ++m) {
      const MemberTraffic traffic = problem.Plan(shm::Kind::kDispatchBackward, true, m);
      std::vector<FindPacked::Source> sources;
      std::vector<PackedRun> runs;
      for (int rank = 0; rank < problem.shape.spec.num_ranks; ++rank) {
        const PackedRows& packed = traffic.packed[static_cast<size_t>(rank)];
        sources.emplace_back();
        if (problem.MemberOf(rank) == m) continue;
        sources.back() = {static_cast<int64_t>(runs.size()),
                          static_cast<int64_t>(packed.unpacks.size())};
        runs.insert(runs.end(), packed.unpacks.begin(), packed.unpacks.end());
        const std::vector<int64_t> slots = SlotsFor(problem, rank, m);
        EXPECT_EQ(static_cast<size_t>(packed.num_rows), slots.size());
        EXPECT_EQ(packed.weights_at, shm::OutWeightsOffset(slots.size() * problem.shape.row_bytes));
      }
      EXPECT_LE(runs.size(), traffic.max_unpacks);
      for (int rank = 0; rank < problem.shape.spec.num_ranks; ++rank) {
        const std::vector<int64_t> slots = SlotsFor(problem, rank, m);
        for (int32_t slot = 0; slot < 200; ++slot) {
          PlanRoute route = {rank, slot};
          FindPacked::Run<0>({.table = &route,
                              .num_routes = 1,
                              .num_ranks = problem.shape.spec.num_ranks,
                              .sources = sources.data(),
                              .runs = runs.data()},
                             {0, 0, 1}, shared_);
          const auto at = std::find(slots.begin(), slots.end(), slot);
          const int32_t there =
              at == slots.end() ? FindPacked::kNotSent : static_cast<int32_t>(at - slots.begin());
          ASSERT_EQ(route.slot, problem.MemberOf(rank) == m ? slot : there) << "seed " << seed;
          ASSERT_EQ(route.dst_rank, rank);
        }
      }
    }
  }
}

// Each on its node: what is planned for members elsewhere is as without it.
TEST(MemberTrafficTest, MembersThatReadEachOtherSendNothingAndAllElseIsTheSame) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    const int num_ranks = problem.shape.spec.num_ranks;
    for (const Call& call : kCalls) {
      for (int m = 0; m < problem.num_members(); ++m) {
        const auto near = [m](int member) { return member % 2 == m % 2; };
        problem.shape.mapped.clear();
        std::vector<Transfer> between_nodes;
        const MemberTraffic all = problem.Plan(call.kind, call.has_weights, m);
        for (const Transfer& t : all.transfers) {
          if (!near(t.peer)) between_nodes.push_back(t);
        }
        for (int r = 0; r < num_ranks; ++r) {
          problem.shape.mapped.push_back(near(problem.MemberOf(r)));
        }
        const MemberTraffic some = problem.Plan(call.kind, call.has_weights, m);
        ASSERT_EQ(some.transfers.size(), between_nodes.size()) << "seed " << seed;
        for (size_t i = 0; i < some.transfers.size(); ++i) {
          Transfer moved = some.transfers[i];
          moved.offset = between_nodes[i].offset;
          EXPECT_EQ(moved, between_nodes[i]);
        }
        EXPECT_LE(some.landing_bytes, all.landing_bytes);
        EXPECT_LE(some.message_bytes, all.message_bytes);
        for (size_t i = 0; i < some.landings.size(); ++i) {
          const int source = static_cast<int>(i) / num_ranks;
          const int destination = static_cast<int>(i) % num_ranks;
          const int a = problem.MemberOf(source);
          const int b = problem.MemberOf(destination);
          const bool reads = (a == m || b == m) && near(a) && near(b);
          EXPECT_EQ(some.landings[i].max_rows,
                    reads ? kReadWhereTheyLie : all.landings[i].max_rows);
        }
      }
    }
  }
}

// The memory for landings is set aside for what the counts allow, before anything was told.
TEST(MemberTrafficTest, NoNumberOfTokensMakesALandingLongerThanTheCountsAllow) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    for (int m = 0; m < problem.num_members(); ++m) {
      problem.tells = false;
      problem.shape.tokens_between.clear();
      const MemberTraffic most = problem.Plan(shm::Kind::kDispatch, true, m);
      problem.tells = true;
      std::fill(problem.tokens_between.begin(), problem.tokens_between.end(), UINT32_MAX);
      const MemberTraffic traffic = problem.Plan(shm::Kind::kDispatch, true, m);
      EXPECT_EQ(traffic.transfers, most.transfers);
      for (uint32_t& one : problem.tokens_between)
        one = static_cast<uint32_t>(problem.Between(0, 12));
      EXPECT_LE(problem.Plan(shm::Kind::kDispatch, true, m).landing_bytes, most.landing_bytes);
    }
  }
}

// All routes of a token lead to one rank: its row goes once, and not K times.
TEST(MemberTrafficTest, ARowThatGoesToOneRankOnlyIsAnEighthOfWhatItsRoutesWouldBe) {
  TrafficShape shape;
  shape.kind = shm::Kind::kDispatch;
  shape.spec = {.num_ranks = 2, .num_experts = 16, .top_k = 8, .alignment = 8, .max_tokens = 4096};
  shape.row_bytes = 14336;
  shape.member_of_rank = {0, 1};
  shape.recv_capacity = {1 << 15, 1 << 15};
  // 256 tokens, each to all experts of the other rank.
  std::vector<int32_t> counts(32);
  std::fill_n(counts.begin() + 8, 8, 256);
  const uint64_t most = PlanMemberTraffic(shape, counts.data(), 0).SentBytes();
  shape.tokens_between = {0, 256, 0, 0};
  const uint64_t told = PlanMemberTraffic(shape, counts.data(), 0).SentBytes();
  EXPECT_EQ(told, LandingBytes(256, 8, 14336));
  EXPECT_EQ(most, 8 * told - 7 * sizeof(LandingHeader));
}

// As it is on a GPU: one rank of 32 experts a worker, whose slots for one peer lie in 32 places.
TEST(MemberTrafficTest, EightWorkersOf256ExpertsSendSevenMessagesEach) {
  TrafficShape shape;
  shape.kind = shm::Kind::kDispatchBackward;
  shape.has_weights = true;
  shape.spec = {.num_ranks = 8, .num_experts = 256, .top_k = 8, .alignment = 8, .max_tokens = 128};
  shape.row_bytes = 64;
  for (int r = 0; r < 8; ++r) {
    shape.member_of_rank.push_back(r);
    shape.recv_capacity.push_back(8 * 1024);
  }
  const std::vector<int32_t> counts(8 * 256, 4);
  const MemberTraffic traffic = PlanMemberTraffic(shape, counts.data(), 3);
  EXPECT_EQ(std::count_if(traffic.transfers.begin(), traffic.transfers.end(),
                          [](const Transfer& t) { return t.sends; }),
            7);  // One per run of slots, for rows and for weights: 448.
  EXPECT_EQ(traffic.transfers.size(), 14u);
  EXPECT_EQ(traffic.SentBytes(), 7u * 32 * 4 * (64 + 4));
}

}  // namespace
}  // namespace epd::cuda
