// Goal: the comparisons of the other tests see the index bugs that CUDA kernels have: a tail that is
// left out, a slot that is one off, a part that is skipped, a phase without its barrier.
#include <gtest/gtest.h>

#include "kernels/cuda/push_direct.h"
#include "kernels/cuda/seal_plan.h"
#include "tests/fakes/cuda/host_step.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

// Moves all but the last, partly filled round of a warp.
struct NoTailMover : VectorMover<4> {
  static void Spread(const std::uint8_t* from, const TokenRows<std::uint8_t>& to,
                     std::uint64_t row_bytes, const RowPart& part, const ThreadPosition& thread,
                     NoShared& shared) {
    const std::uint64_t rounds = row_bytes / (kWidth * kWarpThreads) * (kWidth * kWarpThreads);
    VectorMover<4>::Spread(from, to, rounds, part, thread, shared);
  }
};

// Forgets the last part of each row.
struct LastPartMover : VectorMover<4> {
  static void Spread(const std::uint8_t* from, const TokenRows<std::uint8_t>& to,
                     std::uint64_t row_bytes, const RowPart& part, const ThreadPosition& thread,
                     NoShared& shared) {
    if (part.part + 1 == part.num_parts) return;
    VectorMover<4>::Spread(from, to, row_bytes, part, thread, shared);
  }
};

// One thread reads a word beyond where it should.
struct ShiftedMover : VectorMover<4> {
  static void Spread(const std::uint8_t* from, const TokenRows<std::uint8_t>& to,
                     std::uint64_t row_bytes, const RowPart& part, const ThreadPosition& thread,
                     NoShared& shared) {
    if (thread.InWarp() == 5) from += kWidth;
    VectorMover<4>::Spread(from, to, row_bytes, part, thread, shared);
  }
};

class PlantedBugsTest : public testing::Test {
 protected:
  PlantedBugsTest() {
    problem_.num_ranks = 2;
    problem_.num_experts = 4;
    problem_.top_k = 2;
    problem_.alignment = 4;
    problem_.max_tokens = 8;
    problem_.owner = reference::ContiguousOwners(2, 4);
    problem_.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 3}};
    plans_ = std::make_unique<Plans>(problem_);
    Random random(5);
    for (int r = 0; r < 2; ++r) {
      rows_.push_back(RandomBytes(random, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random, problem_.topk[r].size()));
    }
    for (int r = 0; r < 2; ++r) {
      recvs_.push_back(std::make_unique<DeviceRecv>(plans_->View(r), 8, kRowBytes));
      targets_.push_back(recvs_.back()->Target());
    }
  }

  // Whether both ranks' rows are the reference's after a push with this mover over this table.
  template <typename Mover>
  bool PushesRight(std::int32_t slot_shift = 0) {
    const DeviceTensors tensors(rows_, weights_);
    bool right = true;
    for (int r = 0; r < 2; ++r) {
      const RoutingPlanView& view = plans_->View(r);
      std::vector<PlanRoute> table(view.table, view.table + view.num_tokens * 2);
      for (PlanRoute& route : table) route.slot += route.dst_rank >= 0 ? slot_shift : 0;
      ReportWord report = kNoReport;
      PushDirectArgs args = DirectArgs(view, tensors.rows[r], tensors.weights[r].data(), kRowBytes,
                                       targets_, &report);
      args.table = table.data();
      args.num_parts = 3;
      LaunchList list;
      list.Add<PushDirect<Mover>>("planted", args, DeviceShape{});
      right = RunStepOnHost<PushDirect<Mover>>(list[0], HostOrder::kForward) && right;
    }
    for (int r = 0; r < 2; ++r) {
      Execute(ClearPaddingLaunches(recvs_[r]->args, DeviceShape{}), Device{});
      const reference::ScatterResult want =
          reference::Scatter(problem_, r, rows_, weights_, kRowBytes, 8);
      right = right && recvs_[r]->rows.Copy() == want.rows && recvs_[r]->weights == want.weights;
    }
    return right;
  }

  static constexpr std::uint64_t kRowBytes = 300;
  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  std::vector<std::unique_ptr<DeviceRecv>> recvs_;
  std::vector<RecvTarget> targets_;
};

TEST_F(PlantedBugsTest, TheRightMoverIsRight) { EXPECT_TRUE(PushesRight<VectorMover<4>>()); }

TEST_F(PlantedBugsTest, AMissingTailIsSeen) { EXPECT_FALSE(PushesRight<NoTailMover>()); }

TEST_F(PlantedBugsTest, ASkippedPartIsSeen) { EXPECT_FALSE(PushesRight<LastPartMover>()); }

TEST_F(PlantedBugsTest, AShiftedWordIsSeen) { EXPECT_FALSE(PushesRight<ShiftedMover>()); }

TEST_F(PlantedBugsTest, ASlotThatIsOneOffIsSeen) { EXPECT_FALSE(PushesRight<VectorMover<4>>(1)); }

// SumPlan with both phases in one: the first thread adds up before the others have written.
struct SumPlanWithoutBarrier : SumPlan {
  static constexpr int kPhases = 1;
  template <int kPhase>
  static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    SumPlan::Run<0>(args, thread, shared);
    SumPlan::Run<1>(args, thread, shared);
  }
};

TEST_F(PlantedBugsTest, AMissingBarrierIsSeenInSomeOrder) {
  const RoutingPlanView& view = plans_->View(0);
  bool differs = false;
  for (const HostOrder order : {HostOrder::kForward, HostOrder::kBackward, HostOrder::kShuffled}) {
    std::vector<std::uint64_t> sums(PlanSumUnits(view.spec));
    LaunchList list;
    list.Add<SumPlanWithoutBarrier>(
        "planted", {plans_->Memory(0).data(), view.spec, sums.data(), {}}, DeviceShape{});
    ASSERT_TRUE(RunStepOnHost<SumPlanWithoutBarrier>(list[0], order));
    const auto* header = reinterpret_cast<const PlanHeader*>(view.plan);
    differs = differs || AddPlanSums(sums.data(), view.spec, view.used_bytes) != header->checksum;
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace epd::cuda
