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
  MemberTraffic Plan(shm::Kind kind, bool has_weights, int self) {
    shape.kind = kind;
    shape.has_weights = has_weights;
    return PlanMemberTraffic(shape, counts.data(), self);
  }

  std::mt19937 random;
  TrafficShape shape;
  std::vector<int> owners;
  std::vector<int32_t> counts;
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

using Piece = std::tuple<TrafficPlace, int, uint64_t>;  // Place, rank, bytes.

// Sends of `from` to `to`, or what `to` receives of it; landings lie elsewhere on each side.
std::vector<Piece> Between(const MemberTraffic& of, int peer, bool sends) {
  std::vector<Piece> pieces;
  for (const Transfer& t : of.transfers) {
    if (t.peer == peer && t.sends == sends) pieces.emplace_back(t.place, t.rank, t.bytes);
  }
  return pieces;
}

constexpr uint32_t kNumProblems = 300;

TEST(MemberTrafficTest, BothSidesOfEveryPairPlanTheSameSizesInTheSameOrder) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
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

TEST(MemberTrafficTest, AScatterHasALandingForEveryPairOfRanksWithRowsAndNoneOverlap) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    const RoutingSpec& spec = problem.shape.spec;
    std::map<std::pair<int, int>, int64_t> rows;
    for (const Problem::Route& route : problem.routes) {
      ++rows[{route.source, ExpertOwner(spec, route.expert)}];
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

// Bytes of a stage that the routes between two members need, one by one.
std::set<uint64_t> NeededBytes(const Problem& problem, int rank, int member, bool has_weights) {
  const uint64_t capacity = problem.shape.recv_capacity[static_cast<size_t>(rank)];
  const uint64_t row = problem.shape.row_bytes;
  std::set<uint64_t> bytes;
  for (const Problem::Route& route : problem.routes) {
    if (ExpertOwner(problem.shape.spec, route.expert) != rank) continue;
    if (problem.MemberOf(route.source) != member) continue;
    const auto slot = static_cast<uint64_t>(route.slot);
    if (slot >= capacity) continue;
    for (uint64_t i = 0; i < row; ++i) bytes.insert(slot * row + i);
    const uint64_t weights = shm::OutWeightsOffset(capacity * row);
    for (uint64_t i = 0; has_weights && i < 4; ++i) bytes.insert(weights + slot * 4 + i);
  }
  return bytes;
}

TEST(MemberTrafficTest, AGatherSendsTheSlotsThatTheOtherMemberFilledAndNothingElse) {
  for (uint32_t seed = 0; seed < kNumProblems; ++seed) {
    Problem problem(seed);
    for (const bool has_weights : {false, true}) {
      const shm::Kind kind = has_weights ? shm::Kind::kDispatchBackward : shm::Kind::kCombine;
      for (int m = 0; m < problem.num_members(); ++m) {
        std::map<std::pair<int, int>, std::set<uint64_t>> sent;  // By rank and receiving member.
        uint64_t total = 0;
        for (const Transfer& t : problem.Plan(kind, has_weights, m).transfers) {
          EXPECT_EQ(t.sends, problem.MemberOf(t.rank) == m);
          std::set<uint64_t>& bytes = sent[{t.rank, t.sends ? t.peer : m}];
          for (uint64_t i = 0; i < t.bytes; ++i) bytes.insert(t.offset + i);
          total += t.bytes;
        }
        uint64_t needed = 0;
        for (int rank = 0; rank < problem.shape.spec.num_ranks; ++rank) {
          for (int to = 0; to < problem.num_members(); ++to) {
            const int from = problem.MemberOf(rank);
            if (from == to || (from != m && to != m)) continue;
            const std::set<uint64_t> bytes = NeededBytes(problem, rank, to, has_weights);
            EXPECT_EQ((sent[{rank, to}]), bytes) << "seed " << seed << " rank " << rank;
            needed += bytes.size();
          }
        }
        EXPECT_EQ(total, needed) << "some byte goes twice";
      }
    }
  }
}

TEST(MemberTrafficTest, SlotsThatTouchGoInOnePiece) {
  TrafficShape shape;
  shape.kind = shm::Kind::kCombine;
  shape.spec = {.num_ranks = 4, .num_experts = 4, .top_k = 1, .alignment = 1, .max_tokens = 8};
  shape.row_bytes = 16;
  shape.member_of_rank = {0, 0, 1, 1};
  shape.recv_capacity = {64, 64, 64, 64};
  const std::vector<int32_t> counts(16, 2);  // Each rank sends two rows to each expert.
  const MemberTraffic traffic = PlanMemberTraffic(shape, counts.data(), 0);
  const std::vector<Transfer> expected = {{.peer = 1,
                                           .sends = true,
                                           .place = TrafficPlace::kStage,
                                           .rank = 0,
                                           .offset = 64,
                                           .bytes = 64},
                                          {.peer = 1,
                                           .sends = true,
                                           .place = TrafficPlace::kStage,
                                           .rank = 1,
                                           .offset = 64,
                                           .bytes = 64},
                                          {.peer = 1,
                                           .sends = false,
                                           .place = TrafficPlace::kStage,
                                           .rank = 2,
                                           .offset = 0,
                                           .bytes = 64},
                                          {.peer = 1,
                                           .sends = false,
                                           .place = TrafficPlace::kStage,
                                           .rank = 3,
                                           .offset = 0,
                                           .bytes = 64}};
  EXPECT_EQ(traffic.transfers, expected);
  EXPECT_EQ(traffic.SentBytes(), 128u);
}

}  // namespace
}  // namespace epd::cuda
