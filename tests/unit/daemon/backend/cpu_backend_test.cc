// Goal: the CPU backend takes the level it is told and says which; it needs no communicator but
// refuses what cannot be a unique id.
#include "daemon/backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/backend/cpu/memfd_arenas.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CpuBackend, TakesAForcedLevelAndSaysSo) {
  EXPECT_EQ(CpuBackend::Create("scalar").value()->simd(), "scalar");
  EXPECT_FALSE(CpuBackend::Create("auto").value()->simd().empty());
}

TEST(CpuBackend, RefusesAnUnknownLevelByName) {
  const absl::Status status = CpuBackend::Create("sse9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sse9"));
}

TEST(CpuBackend, TakesAUniqueIdOrNoneAndNothingElse) {
  const auto backend = CpuBackend::Create("auto").value();
  EXPECT_TRUE(backend->InitCommunicator(7, 1, "").ok());
  EXPECT_TRUE(backend->InitCommunicator(7, 1, std::string(128, 'x')).ok());
  const absl::Status status = backend->InitCommunicator(7, 1, "SECRET");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("SECRET"), absl::string_view::npos) << "a unique id was shown";
}

// A prepare of one rank, whose counts of experts are copied.
class CpuBackendMoves : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const FilePages& pages : arenas_->PagesOf(0, 8 << 20))
      ASSERT_EQ(DoPageAction(PageAction::kMake, pages), 0);
    group_.spec.num_ranks = 1;
    group_.spec.num_experts = 4;
  }
  void Start(uint64_t out_bytes, absl::Time now = absl::UnixEpoch()) {
    backend_->StartMove(
        7, *arenas_, group_,
        {.kind = shm::Kind::kPrepare,
         .parts = {{.stage_bytes = 4096, .out_offset = 4096, .out_bytes = out_bytes}}},
        now);
  }
  // Whether it was moved before StartMove returned.
  bool WasAtOnce() {
    const bool at_once = !backend_->busy();
    while (backend_->busy()) backend_->Poll(absl::UnixEpoch()).IgnoreError();
    backend_->Poll(absl::UnixEpoch()).IgnoreError();
    return at_once;
  }

  std::unique_ptr<CpuBackend> backend_ = CpuBackend::Create("auto").value();
  std::unique_ptr<MemfdArenas> arenas_ = MemfdArenas::Create(1, 8 << 20).value();
  MoveGroup group_;
};

TEST_F(CpuBackendMoves, LittleIsMovedAtOnce) {
  Start(4096);
  EXPECT_FALSE(backend_->busy());
  const auto moved = backend_->Poll(absl::UnixEpoch());
  ASSERT_EQ(moved->size(), 1u);
  EXPECT_TRUE((*moved)[0].status.ok()) << (*moved)[0].status;
}

TEST_F(CpuBackendMoves, MuchIsMovedWhileThisThreadAnswersOthers) {
  Start(2 << 20);
  EXPECT_TRUE(backend_->busy());
  std::vector<MovedRows> moved;
  while (backend_->busy()) {
    auto polled = backend_->Poll(absl::UnixEpoch()).value();
    for (MovedRows& one : polled) moved.push_back(std::move(one));
  }
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].id, 7u);
  EXPECT_TRUE(moved[0].status.ok()) << moved[0].status;
}

// 512 calls of a turn could otherwise each have what one may have.
TEST_F(CpuBackendMoves, ManyThatAreSmallAreMovedAtOnceAsLongAsTheyAreLittleInAll) {
  constexpr uint64_t kHalf = uint64_t{500} << 10;
  absl::Time now = absl::UnixEpoch();
  Start(kHalf, now);
  EXPECT_TRUE(WasAtOnce());
  Start(kHalf, now);
  EXPECT_TRUE(WasAtOnce());
  Start(kHalf, now);
  EXPECT_FALSE(WasAtOnce());
  Start(kHalf, now + absl::Milliseconds(2));
  EXPECT_TRUE(WasAtOnce());
}

TEST_F(CpuBackendMoves, AGatherIsAsMuchAsItsRoutesRead) {
  const MoveJob gather{.kind = shm::Kind::kCombine,
                       .dtype = 1,
                       .top_k = 128,
                       .row_bytes = 4096,
                       .parts = {{.stage_bytes = 4096, .out_offset = 4096, .out_bytes = 65536}}};
  backend_->StartMove(7, *arenas_, group_, gather, absl::UnixEpoch());
  EXPECT_FALSE(WasAtOnce());
}

// A prepare that writes 256 MiB.
struct HugeMove {
  HugeMove() {
    for (const FilePages& pages : arenas->PagesOf(0, kRow + kOut))
      EXPECT_EQ(DoPageAction(PageAction::kMake, pages), 0);
    group.group_id = 1;
    group.uid = 1001;
    group.spec.num_ranks = kRanks;
    group.spec.num_experts = 65536;
    for (size_t r = 0; r < kRanks; ++r) {
      job.parts.push_back({.arena = static_cast<int>(r),
                           .stage_bytes = kRow,
                           .out_offset = kRow,
                           .out_bytes = kOut});
    }
  }

  static constexpr size_t kRanks = 32;
  static constexpr uint64_t kRow = uint64_t{65536} * 4;
  static constexpr uint64_t kOut = kRow * kRanks;
  std::unique_ptr<MemfdArenas> arenas = MemfdArenas::Create(kRanks, kRow + kOut).value();
  MoveGroup group;
  MoveJob job;
};

TEST_F(CpuBackendMoves, AnotherUsersMoveDoesNotWaitForTheEndOfAHugeOne) {
  HugeMove huge;
  backend_->StartMove(1, *huge.arenas, huge.group, huge.job, absl::UnixEpoch());
  group_.group_id = 2;
  group_.uid = 1002;
  const absl::Time begin = absl::Now();
  Start(2 << 20);
  std::vector<MoveId> order;
  while (backend_->busy()) {
    const auto moved = backend_->Poll(absl::UnixEpoch()).value();
    for (const MovedRows& one : moved) {
      order.push_back(one.id);
      std::cout << "move " << one.id << " after " << absl::Now() - begin << "\n";
      EXPECT_TRUE(one.status.ok()) << one.status;
    }
  }
  EXPECT_THAT(order, ElementsAre(7, 1));
}

TEST_F(CpuBackendMoves, OneThatIsCancelledDoesNotGoOn) {
  HugeMove huge;
  backend_->StartMove(1, *huge.arenas, huge.group, huge.job, absl::UnixEpoch());
  backend_->CancelMove(1);
  std::vector<MovedRows> moved;
  while (moved.empty()) moved = backend_->Poll(absl::UnixEpoch()).value();
  EXPECT_EQ(moved[0].status.code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(backend_->busy());
}

TEST_F(CpuBackendMoves, NothingTouchesAnArenaOnceItRests) {
  for (int i = 0; i < 20; ++i) Start(2 << 20);
  backend_->Rest();
  arenas_.reset();
}

}  // namespace
}  // namespace epd
