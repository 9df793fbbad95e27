// Goal: whatever a peer leaves in a landing, the receiver writes no slot that is not the peer's, reads
// nothing outside the landing, names the source, and leaves zeros. (Under the address sanitizer the
// first byte beyond any buffer is an error.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/land_rows.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

class HostileLandingTest : public testing::Test {
 protected:
  HostileLandingTest() {
    problem_.num_ranks = 3;
    problem_.num_experts = 6;
    problem_.top_k = 3;
    problem_.alignment = 4;
    problem_.max_tokens = 6;
    problem_.owner = reference::ContiguousOwners(3, 6);
    problem_.topk = {{0, 1, 2, 3, 4, 5, 0, 2, 4}, {1, 0, 3, 3, 1, -1}, {0, 1, 4, 1, 5, 2}};
    plans_ = std::make_unique<Plans>(problem_);
    Random random(5);
    for (int r = 0; r < 3; ++r) {
      rows_.push_back(RandomBytes(random, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random, problem_.topk[r].size()));
    }
    landings_ = std::make_unique<Landings>(*plans_, 3, kRowBytes);
    PushAll(*plans_, DeviceTensors(rows_, weights_), kRowBytes, device_, *landings_);
    recv_ = std::make_unique<DeviceRecv>(plans_->View(0), plans_->TotalRecv(0), kRowBytes);
    sources_ = landings_->SourcesOf(0);
  }

  KernelError Land() {
    recv_->report = kNoReport;
    std::memset(recv_->rows.data(), 0xee, recv_->rows.size());
    recv_->args.sources = sources_.data();
    Execute(LandRowsLaunches(ForOne(recv_->args), device_.shape), device_);
    return ReadReport(recv_->report);
  }
  void ExpectFault(KernelFault fault) {
    const KernelError error = Land();
    EXPECT_EQ(error.fault, fault);
    EXPECT_EQ(error.code, Code::kDataLoss);
    EXPECT_EQ(recv_->rows.Copy(), reference::Bytes(recv_->rows.size(), 0));
    EXPECT_EQ(recv_->weights, std::vector<float>(recv_->weights.size(), 0.0f));
  }
  LandingHeader* Header(int source) {
    return reinterpret_cast<LandingHeader*>(landings_->At(source, 0).data());
  }
  LandingEntry* Entry(int source, int row, int k) {
    return reinterpret_cast<LandingEntry*>(Header(source) + 1) + row * 3 + k;
  }

  static constexpr std::uint64_t kRowBytes = 32;
  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  Device device_;
  std::unique_ptr<Landings> landings_;
  std::unique_ptr<DeviceRecv> recv_;
  std::vector<LandingSource> sources_;
};

TEST_F(HostileLandingTest, AnHonestLandingIsExpanded) {
  EXPECT_TRUE(Land().ok());
  const auto capacity = static_cast<std::int64_t>(recv_->weights.size());
  EXPECT_EQ(recv_->rows.Copy(),
            reference::Scatter(problem_, 0, rows_, weights_, kRowBytes, capacity).rows);
}

TEST_F(HostileLandingTest, HeadersOfSomethingElseAreNamed) {
  const LandingHeader good = *Header(1);
  Header(1)->magic ^= 1;
  ExpectFault(KernelFault::kStageMagic);
  *Header(1) = good;
  Header(1)->plan_id += 1;
  ExpectFault(KernelFault::kStagePlanId);
  *Header(1) = good;
  Header(1)->rank = 2;
  ExpectFault(KernelFault::kStageRank);
  *Header(1) = good;
  Header(1)->row_bytes = 16;
  ExpectFault(KernelFault::kStageRowBytes);
  *Header(1) = good;
  Header(1)->num_rows = 0x7fffffff;
  ExpectFault(KernelFault::kStageNumRows);
}

TEST_F(HostileLandingTest, AShortLandingIsNotRead) {
  sources_[1].bytes -= 1;
  ExpectFault(KernelFault::kStageTruncated);
  sources_[1].base = nullptr;
  ExpectFault(KernelFault::kStageTruncated);
}

// What the sender told of its tokens was a lie: all that it is worth is a landing of another length.
TEST_F(HostileLandingTest, ALandingForFewerOrMoreRowsThanTheCountsNeedIsNamed) {
  sources_[1] = {};
  ExpectFault(KernelFault::kStageRouteCount);
  sources_ = landings_->SourcesOf(0);
  sources_[1].max_rows -= 1;
  ExpectFault(KernelFault::kStageNumRows);
  sources_[1].max_rows += 2;
  ExpectFault(KernelFault::kStageTruncated);
}

// Slots of other sources, of padding, of nobody.
TEST_F(HostileLandingTest, SlotsOfOthersAreRefused) {
  const LandingEntry good = *Entry(1, 0, 0);
  ASSERT_GE(good.slot, 0);
  for (std::int32_t slot = -3; slot < plans_->TotalRecv(0) + 3; ++slot) {
    if (slot == -1 || recv_->args.index.SourceOf(slot) == 1) continue;
    Entry(1, 0, 0)->slot = slot;
    ExpectFault(KernelFault::kStageRouteSlot);
  }
  Entry(1, 0, 0)->slot = 0x7fffffff;
  ExpectFault(KernelFault::kStageRouteSlot);
}

// A push of the receiver's own fills them, out of the source's stage.
TEST_F(HostileLandingTest, SlotsOfASourceThatIsReadWhereItsRowsLieAreLeftAndRefusedToOthers) {
  sources_[1] = {nullptr, 0, kReadWhereTheyLie};
  EXPECT_TRUE(Land().ok());
  const auto capacity = static_cast<std::int64_t>(recv_->weights.size());
  reference::Bytes want =
      reference::Scatter(problem_, 0, rows_, weights_, kRowBytes, capacity).rows;
  std::int64_t of_source = -1;
  for (std::int64_t slot = 0; slot < capacity; ++slot) {
    if (recv_->args.index.SourceOf(slot) != 1) continue;
    of_source = slot;
    std::fill_n(want.begin() + slot * static_cast<std::int64_t>(kRowBytes), kRowBytes, 0xee);
  }
  ASSERT_GE(of_source, 0);
  EXPECT_EQ(recv_->rows.Copy(), want);
  ASSERT_EQ(Entry(2, 0, 2)->slot, -1);
  Entry(2, 0, 2)->slot = static_cast<std::int32_t>(of_source);
  ExpectFault(KernelFault::kStageRouteSlot);
}

// A slot that nobody claims would keep old bytes; two claims to one slot leave another without.
TEST_F(HostileLandingTest, EverySlotMustBeClaimed) {
  Entry(1, 0, 0)->slot = -1;
  ExpectFault(KernelFault::kStageRouteCount);
  Entry(1, 0, 0)->slot = Entry(1, 0, 1)->slot;
  ExpectFault(KernelFault::kStageRouteCount);
  Header(2)->num_rows -= 1;
  ExpectFault(KernelFault::kStageRouteCount);
}

}  // namespace
}  // namespace epd::cuda
