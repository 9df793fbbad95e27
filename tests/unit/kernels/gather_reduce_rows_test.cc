// Goal: the sums that every rank gets back are the reference's to the last bit, at every SIMD
// level and whatever the thread's float mode, and nothing but live rows is ever read.
#include "kernels/gather_reduce_rows.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/simd.h"
#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16};

struct Tensors {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;  // [R][C_r]
};

// `slack` is added to the demand; below zero some routes are dropped.
Tensors RandomTensors(Random& random, const reference::Problem& problem, const Plans& plans,
                      std::uint64_t row_bytes, DataType dtype, std::int64_t slack) {
  Tensors tensors;
  for (int r = 0; r < problem.num_ranks; ++r) {
    const std::int64_t capacity = std::max<std::int64_t>(0, plans.TotalRecv(r) + slack);
    tensors.rows.push_back(RandomRows(random, capacity * row_bytes, dtype));
    tensors.weights.push_back(RandomFloats(random, capacity));
  }
  return tensors;
}

PullGatherArgs PullArgs(const Plans& plans, int rank, const std::vector<StageRef>& refs,
                        DataType dtype, std::uint64_t row_bytes) {
  PullGatherArgs args;
  args.plan = &plans.View(rank);
  args.sources = refs.data();
  args.dtype = dtype;
  args.row_bytes = row_bytes;
  args.num_tokens = args.plan->num_tokens;
  return args;
}

void ExpectLikeReference(const reference::Problem& problem, const Plans& plans,
                         const Tensors& tensors, std::uint64_t row_bytes, DataType dtype) {
  const std::vector<Region> stages =
      StageGathers(problem, plans, tensors.rows, tensors.weights, row_bytes, true);
  const std::vector<StageRef> refs = Refs(stages);
  for (int r = 0; r < problem.num_ranks; ++r) {
    const reference::GatherResult want =
        reference::Gather(problem, r, tensors.rows, tensors.weights, row_bytes, dtype);
    for (const SimdLevel level : kAllSimdLevels) {
      if (!SimdLevelSupported(level)) continue;
      EXPECT_OK(SetSimdLevel(level));
      PullGatherArgs args = PullArgs(plans, r, refs, dtype, row_bytes);
      const Region rows(want.rows.size());
      std::vector<float> weights(want.weights.size(), -1.0f);
      args.out = rows.data();
      args.out_weights = weights.data();
      args.drop_on_overflow = true;
      EXPECT_OK(PullGather(args));
      EXPECT_EQ(rows.Copy(), want.rows) << "rank " << r << " at " << SimdLevelName(level);
      EXPECT_EQ(weights, want.weights) << "rank " << r << " at " << SimdLevelName(level);
    }
  }
  EXPECT_OK(SetSimdLevelByName("auto"));
}

TEST(GatherReduceRowsTest, RandomExchangesMatchTheReferenceAtEveryLevel) {
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    const DataType dtype = kTypes[seed % 3];
    SCOPED_TRACE(Describe(problem, seed) + " dtype=" + std::to_string(static_cast<int>(dtype)));
    const Plans plans(problem);
    const std::uint64_t row_bytes = Uniform(random, 1, 150) * DataTypeBytes(dtype);
    for (const std::int64_t slack : {0, 3, -4, -1000}) {
      ExpectLikeReference(problem, plans,
                          RandomTensors(random, problem, plans, row_bytes, dtype, slack), row_bytes,
                          dtype);
    }
    if (HasFailure()) break;
  }
}

TEST(GatherReduceRowsTest, OwnRowsNeedNoStage) {
  for (std::uint64_t seed = 500; seed < 560; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    const Plans plans(problem);
    const Tensors tensors = RandomTensors(random, problem, plans, 40, DataType::kFloat32, 0);
    const std::vector<Region> stages =
        StageGathers(problem, plans, tensors.rows, tensors.weights, 40, true, true);
    for (int r = 0; r < problem.num_ranks; ++r) {
      std::vector<StageRef> refs = Refs(stages);
      refs[r] = {};
      const reference::GatherResult want =
          reference::Gather(problem, r, tensors.rows, tensors.weights, 40, DataType::kFloat32);
      PullGatherArgs args = PullArgs(plans, r, refs, DataType::kFloat32, 40);
      const Region rows(want.rows.size());
      std::vector<float> weights(want.weights.size(), -1.0f);
      args.out = rows.data();
      args.out_weights = weights.data();
      args.own_rows = tensors.rows[r].data();
      args.own_weights = tensors.weights[r].data();
      args.own_capacity = plans.TotalRecv(r);
      EXPECT_OK(PullGather(args));
      EXPECT_EQ(rows.Copy(), want.rows) << "rank " << r;
      EXPECT_EQ(weights, want.weights) << "rank " << r;
    }
    if (HasFailure()) break;
  }
}

// Two tokens, both to both experts, alignment 8: slots 0, 1 and 8, 9 are live.
class OneRankTest : public testing::Test {
 protected:
  OneRankTest() {
    problem_.num_experts = 2;
    problem_.top_k = 2;
    problem_.alignment = 8;
    problem_.max_tokens = 4;
    problem_.owner = {0, 0};
    problem_.topk = {{0, 1, 1, 0}};
    plans_ = std::make_unique<Plans>(problem_);
  }

  // Combine of float32 rows of one element per slot.
  std::vector<float> Combine(const std::vector<float>& slots) {
    reference::Bytes rows(slots.size() * 4);
    std::memcpy(rows.data(), slots.data(), rows.size());
    const std::vector<Region> stages =
        StageGathers(problem_, *plans_, {rows}, {slots}, 4, /*with_weights=*/false);
    const std::vector<StageRef> refs = Refs(stages);
    std::vector<float> out(problem_.NumTokens(0), -1.0f);
    PullGatherArgs args = PullArgs(*plans_, 0, refs, DataType::kFloat32, 4);
    args.out = out.data();
    args.drop_on_overflow = true;
    EXPECT_OK(PullGather(args));
    return out;
  }

  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
};

TEST_F(OneRankTest, NaNInPaddingAndTailReachesNothing) {
  std::vector<float> slots(20, std::nanf(""));
  slots[0] = 1;
  slots[1] = 2;
  slots[8] = 10;
  slots[9] = 20;
  EXPECT_EQ(Combine(slots), (std::vector<float>{11, 22}));
}

TEST_F(OneRankTest, DroppedRoutesAddNothing) {
  std::vector<float> slots(9, 0.0f);
  slots[0] = 1;
  slots[1] = 2;
  slots[8] = 10;
  EXPECT_EQ(Combine(slots), (std::vector<float>{11, 2}));
}

TEST_F(OneRankTest, OneLiveRouteKeepsItsBits) {
  problem_.topk = {{0, -1, -1, 1}};
  plans_ = std::make_unique<Plans>(problem_);
  std::vector<float> slots(16, 5.0f);
  const std::uint32_t payload = 0xffa12345;  // a signalling NaN with a sign
  slots[0] = -0.0f;
  std::memcpy(&slots[8], &payload, 4);
  const std::vector<float> out = Combine(slots);
  EXPECT_TRUE(out[0] == 0.0f && std::signbit(out[0]));
  EXPECT_EQ(std::memcmp(&out[1], &payload, 4), 0);
}

#if defined(__x86_64__)
// XLA's threads flush denormals; a sum must not depend on that, nor change it.
TEST_F(OneRankTest, FlushModeOfTheThreadChangesNothing) {
  std::vector<float> slots(16, 0.0f);
  slots[0] = 0x1p-140f;
  slots[8] = 0x1p-141f;
  const unsigned before = _mm_getcsr();
  const unsigned flushing = before | 0x8040;  // FTZ and DAZ
  _mm_setcsr(flushing);
  const std::vector<float> out = Combine(slots);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(out[0], 0x1p-140f + 0x1p-141f);
  EXPECT_EQ(after & 0xffc0, flushing & 0xffc0);
}
#endif

TEST_F(OneRankTest, RefusesWrongArgumentsAndLeavesZeros) {
  const std::vector<Region> stages =
      StageGathers(problem_, *plans_, {reference::Bytes(64)}, {std::vector<float>(16)}, 4, false);
  const std::vector<StageRef> refs = Refs(stages);
  std::vector<float> out(4, -1.0f);
  const PullGatherArgs good = [&] {
    PullGatherArgs args = PullArgs(*plans_, 0, refs, DataType::kFloat32, 4);
    args.out = out.data();
    return args;
  }();
  EXPECT_OK(PullGather(good));
  PullGatherArgs args = good;
  args.num_tokens = 1;
  EXPECT_EQ(PullGather(args).fault, KernelFault::kNumTokens);
  args = good;
  args.dtype = static_cast<DataType>(9);
  EXPECT_EQ(PullGather(args).fault, KernelFault::kDataType);
  args = good;
  args.row_bytes = 6;
  std::fill(out.begin(), out.end(), -1.0f);
  EXPECT_EQ(PullGather(args).fault, KernelFault::kRowBytes);
  EXPECT_EQ(out, (std::vector<float>{0, 0, 0, -1}));
  args = good;
  args.out = nullptr;
  EXPECT_EQ(PullGather(args).fault, KernelFault::kNullArgument);
}

TEST_F(OneRankTest, TooFewRowsWithoutDropsIsDataLoss) {
  const std::vector<Region> stages =
      StageGathers(problem_, *plans_, {reference::Bytes(36)}, {std::vector<float>(9)}, 4, false);
  const std::vector<StageRef> refs = Refs(stages);
  std::vector<float> out(2, -1.0f);
  PullGatherArgs args = PullArgs(*plans_, 0, refs, DataType::kFloat32, 4);
  args.out = out.data();
  const KernelError error = PullGather(args);
  EXPECT_EQ(error.code, Code::kDataLoss);
  EXPECT_EQ(error.fault, KernelFault::kStageNumRows);
  EXPECT_EQ(error.rank, 0);
  EXPECT_EQ(error.got, 9u);
  EXPECT_EQ(error.expected, 16u);
  EXPECT_EQ(out, (std::vector<float>{0, 0}));
}

TEST_F(OneRankTest, RouteOutOfRangeIsNamed) {
  const std::vector<Region> stages =
      StageGathers(problem_, *plans_, {reference::Bytes(64)}, {std::vector<float>(16)}, 4, false);
  const std::vector<StageRef> refs = Refs(stages);
  std::vector<PlanRoute> table(plans_->View(0).table, plans_->View(0).table + 4);
  RoutingPlanView view = plans_->View(0);
  view.table = table.data();
  std::vector<float> out(2, -1.0f);
  PullGatherArgs args = PullArgs(*plans_, 0, refs, DataType::kFloat32, 4);
  args.plan = &view;
  args.out = out.data();
  table[3].dst_rank = 1;
  KernelError error = PullGather(args);
  EXPECT_EQ(error.fault, KernelFault::kPlanRoute);
  EXPECT_EQ(error.token, 1);
  EXPECT_EQ(error.k, 1);
  table[3] = {0, -5};
  error = PullGather(args);
  EXPECT_EQ(error.fault, KernelFault::kPlanRoute);
  EXPECT_EQ(static_cast<std::int64_t>(error.got), -5);
}

}  // namespace
}  // namespace epd
