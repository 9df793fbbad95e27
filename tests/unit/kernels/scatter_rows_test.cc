// Goal: what every rank receives is, byte for byte, what the plain reference says, for every shape,
// and calls that cannot be right are refused with zeros in the outputs.
#include "kernels/scatter_rows.h"

#include <gtest/gtest.h>

#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

struct Tensors {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;
};

Tensors RandomTensors(Random& random, const reference::Problem& problem, std::size_t row_bytes) {
  Tensors tensors;
  for (int r = 0; r < problem.num_ranks; ++r) {
    tensors.rows.push_back(RandomBytes(random, problem.NumTokens(r) * row_bytes));
    tensors.weights.push_back(RandomFloats(random, problem.topk[r].size()));
  }
  return tensors;
}

// Runs the exchange at one capacity and compares rows and weights of every rank.
void ExpectLikeReference(const reference::Problem& problem, const Plans& plans,
                         const Tensors& tensors, std::uint64_t row_bytes, std::int64_t capacity) {
  const std::vector<Region> stages =
      StageScatters(problem, plans, tensors.rows, tensors.weights, row_bytes);
  const std::vector<StageRef> refs = Refs(stages);
  for (int r = 0; r < problem.num_ranks; ++r) {
    const Region rows(capacity * row_bytes);
    std::vector<float> weights(capacity, -1.0f);
    PullScatterArgs args;
    args.plan = &plans.View(r);
    args.sources = refs.data();
    args.row_bytes = row_bytes;
    args.capacity = capacity;
    args.recv_rows = rows.data();
    args.recv_weights = weights.data();
    args.drop_on_overflow = true;
    EXPECT_OK(PullScatter(args));
    const reference::ScatterResult want =
        reference::Scatter(problem, r, tensors.rows, tensors.weights, row_bytes, capacity);
    EXPECT_EQ(rows.Copy(), want.rows) << "rank " << r << " C=" << capacity;
    EXPECT_EQ(weights, want.weights) << "rank " << r;
  }
}

TEST(ScatterRowsTest, RandomExchangesMatchTheReference) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    const Plans plans(problem, seed % 2 == 0 ? IndexType::kInt64 : IndexType::kInt32);
    const auto row_bytes = static_cast<std::uint64_t>(Uniform(random, 1, 300));
    const Tensors tensors = RandomTensors(random, problem, row_bytes);
    std::int64_t demand = 0;
    for (int r = 0; r < problem.num_ranks; ++r) {
      demand = std::max<std::int64_t>(demand, plans.TotalRecv(r));
    }
    for (const std::int64_t capacity : {std::int64_t{0}, demand / 2, demand, demand + 5}) {
      ExpectLikeReference(problem, plans, tensors, row_bytes, capacity);
    }
    if (HasFailure()) break;
  }
}

// Own rows come from the tensors, and own stages are not even passed.
TEST(ScatterRowsTest, OwnRowsNeedNoStage) {
  for (std::uint64_t seed = 1000; seed < 1100; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    const Plans plans(problem);
    const Tensors tensors = RandomTensors(random, problem, 48);
    const std::vector<Region> stages =
        StageScatters(problem, plans, tensors.rows, tensors.weights, 48, /*skip_own_rows=*/true);
    for (int r = 0; r < problem.num_ranks; ++r) {
      std::vector<StageRef> refs = Refs(stages);
      refs[r] = {};
      const std::int64_t capacity = plans.TotalRecv(r);
      const Region rows(capacity * 48);
      std::vector<float> weights(capacity, -1.0f);
      EXPECT_OK(PullScatter({&plans.View(r), refs.data(), 48, capacity, rows.data(), weights.data(),
                             false, tensors.rows[r].data(), tensors.weights[r].data()}));
      const reference::ScatterResult want =
          reference::Scatter(problem, r, tensors.rows, tensors.weights, 48, capacity);
      EXPECT_EQ(rows.Copy(), want.rows) << "rank " << r;
      EXPECT_EQ(weights, want.weights) << "rank " << r;
    }
    if (HasFailure()) break;
  }
}

// Columns [begin, end) of rows of `row_bytes`.
reference::Bytes Columns(const reference::Bytes& rows, std::uint64_t row_bytes, std::uint64_t begin,
                         std::uint64_t end) {
  reference::Bytes columns;
  for (std::size_t at = 0; at < rows.size(); at += row_bytes) {
    columns.insert(columns.end(), rows.begin() + at + begin, rows.begin() + at + end);
  }
  return columns;
}

// Arrays that travel side by side: each is staged and pulled by itself, weights come with the first.
TEST(ScatterRowsTest, SlicesOfRowsArriveAsTheRowsDo) {
  constexpr std::uint64_t kWhole = 45;
  constexpr std::uint64_t kEnds[] = {0, 32, 33, kWhole};
  for (std::uint64_t seed = 2000; seed < 2100; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    const Plans plans(problem);
    const Tensors tensors = RandomTensors(random, problem, kWhole);
    const bool own_rows = seed % 2 == 0;
    std::vector<Region> stages;
    for (int r = 0; r < problem.num_ranks; ++r) {
      const RoutingPlanView& view = plans.View(r);
      stages.emplace_back(
          ScatterStageBytes({view.num_tokens, view.num_routes, problem.num_ranks, kWhole}));
      for (int i = 0; i < 3; ++i) {
        const reference::Bytes rows = Columns(tensors.rows[r], kWhole, kEnds[i], kEnds[i + 1]);
        StageScatterArgs args = {&view,
                                 rows.data(),
                                 tensors.weights[r].data(),
                                 view.num_tokens,
                                 kEnds[i + 1] - kEnds[i],
                                 stages[r].data(),
                                 stages[r].size()};
        args.skip_own_rows = own_rows;
        args.slice = {kEnds[i], kWhole};
        EXPECT_OK(i == 0 ? StageScatter(args) : StageScatterSlice(args));
      }
    }
    for (int r = 0; r < problem.num_ranks; ++r) {
      std::vector<StageRef> refs = Refs(stages);
      if (own_rows) refs[r] = {};
      const std::int64_t capacity = plans.TotalRecv(r) + 2;
      const reference::ScatterResult want =
          reference::Scatter(problem, r, tensors.rows, tensors.weights, kWhole, capacity);
      for (int i = 0; i < 3; ++i) {
        const std::uint64_t row_bytes = kEnds[i + 1] - kEnds[i];
        const reference::Bytes own = Columns(tensors.rows[r], kWhole, kEnds[i], kEnds[i + 1]);
        const Region rows(capacity * row_bytes);
        std::vector<float> weights(capacity, -1.0f);
        PullScatterArgs args = {&plans.View(r), refs.data(), row_bytes, capacity, rows.data()};
        if (i == 0) args.recv_weights = weights.data();
        if (own_rows) args.own_rows = own.data();
        if (own_rows && i == 0) args.own_weights = tensors.weights[r].data();
        args.slice = {kEnds[i], kWhole, /*skip_weights=*/i != 0};
        EXPECT_OK(PullScatter(args));
        EXPECT_EQ(rows.Copy(), Columns(want.rows, kWhole, kEnds[i], kEnds[i + 1]))
            << "rank " << r << " slice " << i;
        EXPECT_EQ(weights, i == 0 ? want.weights : std::vector<float>(capacity, -1.0f));
      }
    }
    if (HasFailure()) break;
  }
}

class TwoRanksTest : public testing::Test {
 protected:
  TwoRanksTest() {
    problem_.num_ranks = 2;
    problem_.num_experts = 4;
    problem_.top_k = 2;
    problem_.alignment = 4;
    problem_.max_tokens = 8;
    problem_.owner = reference::ContiguousOwners(2, 4);
    problem_.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 3}};
    plans_ = std::make_unique<Plans>(problem_);
    Random random(5);
    tensors_ = RandomTensors(random, problem_, kRowBytes);
  }

  PullScatterArgs PullArgs(const std::vector<StageRef>& refs, const Region& rows) {
    PullScatterArgs args;
    args.plan = &plans_->View(0);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.capacity = static_cast<std::int64_t>(rows.size() / kRowBytes);
    args.recv_rows = rows.data();
    return args;
  }

  static constexpr std::uint64_t kRowBytes = 24;
  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  Tensors tensors_;
};

// The backward of combine: rows without weights.
TEST_F(TwoRanksTest, WorksWithoutWeights) {
  const std::vector<Region> stages = StageScatters(problem_, *plans_, tensors_.rows, {}, kRowBytes);
  const std::vector<StageRef> refs = Refs(stages);
  const Region rows(8 * kRowBytes);
  EXPECT_OK(PullScatter(PullArgs(refs, rows)));
  const reference::ScatterResult want =
      reference::Scatter(problem_, 0, tensors_.rows, tensors_.weights, kRowBytes, 8);
  EXPECT_EQ(rows.Copy(), want.rows);
}

TEST_F(TwoRanksTest, OverflowWithoutDropsNamesRankDemandAndCapacityAndLeavesZeros) {
  const std::vector<Region> stages = StageScatters(problem_, *plans_, tensors_.rows, {}, kRowBytes);
  const std::vector<StageRef> refs = Refs(stages);
  const Region rows(7 * kRowBytes);
  const KernelError error = PullScatter(PullArgs(refs, rows));
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_EQ(error.fault, KernelFault::kOverflow);
  EXPECT_EQ(error.rank, 0);
  EXPECT_EQ(error.got, 8u);
  EXPECT_EQ(error.expected, 7u);
  EXPECT_EQ(rows.Copy(), reference::Bytes(rows.size(), 0));
}

TEST_F(TwoRanksTest, StageRefusesWrongArguments) {
  const RoutingPlanView& view = plans_->View(0);
  const Region stage(ScatterStageBytes({3, view.num_routes, 2, kRowBytes}));
  const StageScatterArgs good = {
      &view, tensors_.rows[0].data(), nullptr, 3, kRowBytes, stage.data(), stage.size()};
  EXPECT_OK(StageScatter(good));
  StageScatterArgs args = good;
  args.num_tokens = 2;
  EXPECT_EQ(StageScatter(args).fault, KernelFault::kNumTokens);
  args = good;
  args.row_bytes = 0;
  EXPECT_EQ(StageScatter(args).fault, KernelFault::kRowBytes);
  args = good;
  args.stage_bytes -= 1;
  EXPECT_EQ(StageScatter(args).fault, KernelFault::kBufferTooSmall);
  args = good;
  args.stage = stage.data() + 4;
  EXPECT_EQ(StageScatter(args).fault, KernelFault::kMisaligned);
  args = good;
  args.rows = nullptr;
  EXPECT_EQ(StageScatter(args).fault, KernelFault::kNullArgument);
  args = good;
  args.plan = nullptr;
  EXPECT_EQ(StageScatter(args).code, Code::kInvalidArgument);
  for (const StageRowSlice& outside : {StageRowSlice{1, kRowBytes}, StageRowSlice{0, kRowBytes - 1},
                                       StageRowSlice{UINT64_MAX, kRowBytes}}) {
    args = good;
    args.slice = outside;
    EXPECT_EQ(StageScatter(args).fault, KernelFault::kRowBytes);
    EXPECT_EQ(StageScatterSlice(args).fault, KernelFault::kRowBytes);
  }
}

TEST_F(TwoRanksTest, PullRefusesWrongArguments) {
  const std::vector<Region> stages = StageScatters(problem_, *plans_, tensors_.rows, {}, kRowBytes);
  const std::vector<StageRef> refs = Refs(stages);
  const Region rows(8 * kRowBytes);
  PullScatterArgs args = PullArgs(refs, rows);
  args.capacity = -1;
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kCapacity);
  args = PullArgs(refs, rows);
  args.row_bytes = 0;
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kRowBytes);
  args = PullArgs(refs, rows);
  args.slice = {1, kRowBytes};
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kRowBytes);
  args.slice = {0, kRowBytes + 1};
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kStageRowBytes);
  args = PullArgs(refs, rows);
  args.recv_rows = nullptr;
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kNullArgument);
  args = PullArgs(refs, rows);
  args.sources = nullptr;
  EXPECT_EQ(PullScatter(args).fault, KernelFault::kNullArgument);
}

}  // namespace
}  // namespace epd
