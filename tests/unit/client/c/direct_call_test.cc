// Goal: two ranks that publish the same call meet; whoever cannot publish says so, and nobody looks for it in vain; a prepare's
// routes stand where the worker finds them, and are not written over before it has.
#include "client/c/direct_call.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <vector>

#include "client/c/unique_fd.h"

namespace epd::client {
namespace {

constexpr uint64_t kStaging = 4096;
constexpr auto kLong = std::chrono::seconds(20);

// Both ranks are of this process.
class DirectCallTest : public ::testing::Test {
 protected:
  DirectCallTest() {
    formation_.spec.max_tokens_per_rank = 100;
    for (int rank = 0; rank < 2; ++rank) {
      const uint64_t bytes = kStaging + sizeof(shm::DirectTail);
      const UniqueFd fd(memfd_create("arena", MFD_ALLOW_SEALING));
      EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
      EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
      auto mapping = std::make_shared<Mapping>();
      EXPECT_TRUE(Mapping::Map(fd.get(), bytes, true, mapping.get()).ok());
      tails_.push_back(reinterpret_cast<shm::DirectTail*>(mapping->data() + kStaging));
      tails_.back()->area.gate = shm::DirectGate(1, 0);
      tails_.back()->area.num_route_lines = shm::kRouteLines;
      Formation::Arena arena;
      arena.mapping = std::move(mapping);
      arena.own = true;
      formation_.arenas.push_back(std::move(arena));
    }
  }

  static shm::SlotRequest Request(shm::Kind kind) {
    shm::SlotRequest request = {};
    request.kind = kind;
    return request;
  }
  std::unique_ptr<DirectCall> Make(uint32_t rank) {
    return std::make_unique<DirectCall>(formation_, rank, *pools_[rank]);
  }
  // Of execution `execution`, published by `rank`; null if it cannot.
  std::unique_ptr<DirectCall> Publish(uint32_t rank, shm::Kind kind, uint64_t execution,
                                      std::span<const int32_t> routes = {}) {
    auto call = Make(rank);
    const DirectCall::Said said = {.eager_buffer = 0, .name = "call", .routes = routes};
    if (!call->Publish(Request(kind), {.execution = execution, .generation = 1}, said)) return {};
    return call;
  }
  // A prepare of both, to its end, after which nobody reads.
  bool PrepareBoth(uint64_t execution, std::span<const int32_t> routes) {
    std::vector<std::unique_ptr<DirectCall>> calls;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      calls.push_back(Publish(rank, shm::Kind::kPrepare, execution, routes));
      if (calls.back() == nullptr) return false;
    }
    for (auto& call : calls) EXPECT_EQ(call->Await(Clock::now() + kLong), DirectCall::Met::kYes);
    const auto shared = std::shared_ptr<const Formation>(&formation_, [](const Formation*) {});
    for (auto& call : calls) call->Finish(Clock::now(), 3);
    for (auto& call : calls) EXPECT_TRUE(DirectCall::MakeIsFree(shared, *call)());
    return true;
  }
  // As the worker does.
  void TakeAll() {
    for (shm::DirectTail* tail : tails_) tail->area.taken = shm::GateCount(tail->area.gate);
  }

  Formation formation_;
  std::vector<shm::DirectTail*> tails_;
  std::unique_ptr<shm::SlotsSegment> segment_ = std::make_unique<shm::SlotsSegment>();
  std::vector<std::unique_ptr<SlotPool>> pools_ = [this] {
    std::vector<std::unique_ptr<SlotPool>> pools;
    for (int rank = 0; rank < 2; ++rank)
      pools.push_back(std::make_unique<SlotPool>(shm::SlotsView::Of(segment_.get(), {}), -1));
    return pools;
  }();
};

TEST_F(DirectCallTest, BothMeetAndNameThePlanAlike) {
  const std::vector<int32_t> routes = {1, 2};
  const auto first = Publish(0, shm::Kind::kPrepare, 5, routes);
  const auto second = Publish(1, shm::Kind::kPrepare, 5, routes);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(first->Await(Clock::now() + kLong), DirectCall::Met::kYes);
  EXPECT_EQ(second->Await(Clock::now() + kLong), DirectCall::Met::kYes);
  EXPECT_EQ(first->plan_id(), second->plan_id());
  EXPECT_GE(first->plan_id(), uint64_t{1} << 63);
  const auto next = Publish(0, shm::Kind::kPrepare, 6, routes);
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next->plan_id(), first->plan_id());
}

TEST_F(DirectCallTest, NobodyLooksForOneThatAsksTheWorkerForTheSameCall) {
  for (uint64_t execution = 0; execution < shm::kDirectLook; ++execution)
    ASSERT_NE(Publish(0, shm::Kind::kDispatch, execution), nullptr);
  EXPECT_EQ(Publish(0, shm::Kind::kDispatch, 100), nullptr) << "all its publications are open";
  const auto peer = Publish(1, shm::Kind::kDispatch, 100);
  ASSERT_NE(peer, nullptr);
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(peer->Await(Clock::now() + kLong), DirectCall::Met::kNo);
  EXPECT_LT(Clock::now() - begin, kLong / 2);
  // For another one it does.
  const auto other = Publish(1, shm::Kind::kDispatch, 101);
  ASSERT_NE(other, nullptr);
  const Clock::time_point next = Clock::now();
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(50);
  EXPECT_EQ(other->Await(deadline, Clock::now()), DirectCall::Met::kNotYet);
  EXPECT_EQ(other->Await(deadline), DirectCall::Met::kNo);
  EXPECT_GE(Clock::now() - next, std::chrono::milliseconds(50));
}

TEST_F(DirectCallTest, RoutesStandInLinesOfTheirOwnUntilTheWorkerHasTakenThem) {
  std::vector<int32_t> routes(shm::kExpertsPerLine * 9);
  std::iota(routes.begin(), routes.end(), 1);
  uint64_t execution = 0;
  while (PrepareBoth(execution, routes)) ++execution;
  EXPECT_EQ(execution, shm::kRouteLines / 9);
  EXPECT_GE(execution, shm::kFewestRoutes);
  for (uint32_t count = 1; count <= execution; ++count) {
    const shm::DirectRecord& record = tails_[0]->area.records[count];
    EXPECT_EQ(record.padded_rows, 3u);
    ASSERT_EQ(record.num_experts, routes.size());
    for (uint32_t e = 0; e < record.num_experts; ++e) {
      const shm::RouteLine& line =
          tails_[0]->route_lines[record.routes - 1 + e / shm::kExpertsPerLine];
      ASSERT_EQ(line.count, count);
      ASSERT_EQ(line.of_expert[e % shm::kExpertsPerLine], routes[e]);
    }
  }
  EXPECT_NE(Publish(0, shm::Kind::kDispatch, execution), nullptr) << "which needs no lines";
  TakeAll();
  EXPECT_TRUE(PrepareBoth(execution + 1, routes));
}

// Each program learns for itself that a generation is over, by a call that finds it so.
TEST_F(DirectCallTest, PreparesOfAGenerationThatHasEndedTakeNoLinesFromLaterOnes) {
  const std::vector<int32_t> routes(shm::kDirectExperts);
  for (shm::DirectTail* tail : tails_) tail->area.gate = shm::DirectGate(2, 0);
  for (uint64_t execution = 0; execution < shm::kRouteLines; ++execution)
    ASSERT_EQ(Publish(0, shm::Kind::kPrepare, execution, routes), nullptr);
  auto next = Make(0);
  EXPECT_TRUE(next->Publish(Request(shm::Kind::kPrepare), {.execution = 0, .generation = 2},
                            {.eager_buffer = 0, .name = "call", .routes = routes}));
}

TEST_F(DirectCallTest, PreparesAskTheWorkerWhereTheirRoutesFindNoPlace) {
  const std::vector<int32_t> routes(shm::kDirectExperts + 1);
  EXPECT_EQ(Publish(0, shm::Kind::kPrepare, 1, routes), nullptr);
  EXPECT_NE(Publish(0, shm::Kind::kPrepare, 1, std::span(routes).first(shm::kDirectExperts)),
            nullptr);
  formation_.spec.max_tokens_per_rank = shm::kMaxDirectTokens + 1;
  EXPECT_EQ(Publish(0, shm::Kind::kPrepare, 2, std::span(routes).first(8)), nullptr);
  formation_.spec.max_tokens_per_rank = shm::kMaxDirectTokens;
  EXPECT_NE(Publish(0, shm::Kind::kPrepare, 3, std::span(routes).first(8)), nullptr);
  // More than its tokens: of each an expert may have several.
  const std::vector<int32_t> many = {1, int32_t{UINT16_MAX} + 1};
  EXPECT_EQ(Publish(0, shm::Kind::kPrepare, 4, many), nullptr);
  tails_[0]->area.num_route_lines = 0;  // An earlier release's worker.
  EXPECT_EQ(Publish(0, shm::Kind::kPrepare, 4, std::span(routes).first(8)), nullptr);
  EXPECT_NE(Publish(0, shm::Kind::kDispatch, 4), nullptr);
}

}  // namespace
}  // namespace epd::client
