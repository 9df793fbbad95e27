// Goal: the comparisons of the other tests see the index bugs that CUDA kernels have: a tail that is
// left out, a slot that is one off, a part that is skipped, a phase without its barrier.
#include <gtest/gtest.h>

#include "kernels/cuda/read_rows.h"
#include "kernels/cuda/seal_plan.h"
#include "tests/fakes/cuda/host_step.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

// Moves all but the last, partly filled round of a warp.
struct NoTailMover : VectorMover<4> {
  static void Copy(RowCopy copy, const ThreadPosition& thread, NoShared& shared) {
    copy.row_bytes = copy.row_bytes / (kWidth * kWarpThreads) * (kWidth * kWarpThreads);
    VectorMover<4>::Copy(copy, thread, shared);
  }
};

// Forgets the last part of each row.
struct LastPartMover : VectorMover<4> {
  static void Copy(const RowCopy& copy, const ThreadPosition& thread, NoShared& shared) {
    if (copy.part.part + 1 < copy.part.num_parts) VectorMover<4>::Copy(copy, thread, shared);
  }
};

// One thread reads a word beyond where it should.
struct ShiftedMover : VectorMover<4> {
  static void Copy(RowCopy copy, const ThreadPosition& thread, NoShared& shared) {
    if (thread.InWarp() == 5) copy.from += kWidth;
    VectorMover<4>::Copy(copy, thread, shared);
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
    }
  }

  // Whether both ranks' rows are the reference's after they are read with this mover.
  template <typename Mover>
  bool ReadsRight(std::int32_t route_shift = 0) {
    const DeviceTensors tensors(rows_, weights_);
    std::vector<std::unique_ptr<DeviceStage>> memory;
    std::vector<ScatterStage> stages;
    for (int r = 0; r < 2; ++r) {
      const RoutingPlanView& view = plans_->View(r);
      memory.push_back(std::make_unique<DeviceStage>(view, kRowBytes));
      stages.push_back(memory.back()->stage);
      Execute(StageRowsLaunches(
                  StagingArgs(view, tensors.rows[r], weights_[r].data(), kRowBytes, stages.back()),
                  DeviceShape{}),
              Device{});
      for (int e = 0; e < problem_.num_experts; ++e)
        stages.back().experts[e].first_route += route_shift;
    }
    bool right = true;
    for (int r = 0; r < 2; ++r) {
      ReadRowsArgs args = ReadingArgs(plans_->View(r), *recvs_[r], stages);
      args.num_parts = 3;
      LandRowsArgs index;
      index.index = args.index;
      LaunchList list;
      list.Add<IndexLandings>("index", index, DeviceShape{});
      list.Add<ReadRows<Mover>>("planted", args, DeviceShape{});
      right = RunStepOnHost<IndexLandings>(list[0], HostOrder::kForward) && right;
      right = RunStepOnHost<ReadRows<Mover>>(list[1], HostOrder::kForward) && right;
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
};

TEST_F(PlantedBugsTest, TheRightMoverIsRight) { EXPECT_TRUE(ReadsRight<VectorMover<4>>()); }

TEST_F(PlantedBugsTest, AMissingTailIsSeen) { EXPECT_FALSE(ReadsRight<NoTailMover>()); }

TEST_F(PlantedBugsTest, ASkippedPartIsSeen) { EXPECT_FALSE(ReadsRight<LastPartMover>()); }

TEST_F(PlantedBugsTest, AShiftedWordIsSeen) { EXPECT_FALSE(ReadsRight<ShiftedMover>()); }

TEST_F(PlantedBugsTest, ARouteThatIsOneOffIsSeen) { EXPECT_FALSE(ReadsRight<VectorMover<4>>(1)); }

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
