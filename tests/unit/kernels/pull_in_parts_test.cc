// Goal: a pull in parts writes the bytes of a whole one, whatever the parts; what is wrong is found all the same.
#include "kernels/pull_in_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/plan_reader.h"
#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

constexpr std::uint64_t kRowBytes = 40;

// How many parts there were.
int DoAll(PullInParts& pull, std::uint64_t bytes) {
  int count = 1;
  while (pull.Some(bytes)) ++count;
  return count;
}

class PullInPartsTest : public ::testing::Test {
 protected:
  PullInPartsTest() {
    for (int r = 0; r < problem_.num_ranks; ++r) {
      rows_.push_back(RandomBytes(random_, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random_, problem_.topk[r].size()));
    }
    scatters_ = StageScatters(problem_, plans_, rows_, weights_, kRowBytes);
  }
  PullScatterArgs Scatter(int rank, const std::vector<StageRef>& refs, std::int64_t capacity) {
    PullScatterArgs args;
    args.plan = &plans_.View(rank);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.capacity = capacity;
    args.drop_on_overflow = true;
    return args;
  }

  Random random_{7};
  reference::Problem problem_ = RandomProblem(random_, Routing::kUniform);
  Plans plans_{problem_};
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  std::vector<Region> scatters_;
};

TEST_F(PullInPartsTest, AScatterHasTheSameBytes) {
  const std::vector<StageRef> refs = Refs(scatters_);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    const std::int64_t total = TotalRecv(problem_.Spec(), plans_.Counts().data(), r);
    for (const std::int64_t capacity : {total + 17, total, total / 2}) {
      PullScatterArgs args = Scatter(r, refs, capacity);
      Region rows(capacity * kRowBytes);
      std::vector<float> weights(capacity);
      args.recv_rows = rows.data();
      args.recv_weights = weights.data();
      EXPECT_OK(PullScatter(args));
      for (const std::uint64_t part : {1, 500, 100000}) {
        Region again(capacity * kRowBytes);
        std::vector<float> weights_again(capacity, -1);
        args.recv_rows = again.data();
        args.recv_weights = weights_again.data();
        const std::unique_ptr<PullInParts> pull = MakeScatterPull(args);
        const int num_parts = DoAll(*pull, part);
        EXPECT_OK(pull->error());
        EXPECT_EQ(again.Copy(), rows.Copy()) << "rank " << r << ", parts of " << part;
        EXPECT_EQ(weights_again, weights);
        if (part == 1) {
          EXPECT_GE(num_parts, capacity);
        }
      }
    }
  }
}

TEST_F(PullInPartsTest, OwnRowsAreTakenFromTheCaller) {
  const std::vector<StageRef> refs = Refs(scatters_);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    const std::int64_t capacity = TotalRecv(problem_.Spec(), plans_.Counts().data(), r) + 3;
    PullScatterArgs args = Scatter(r, refs, capacity);
    Region rows(capacity * kRowBytes);
    Region again(capacity * kRowBytes);
    args.own_rows = rows_[r].data();
    args.own_weights = weights_[r].data();
    std::vector<float> weights(capacity);
    args.recv_weights = weights.data();
    args.recv_rows = rows.data();
    EXPECT_OK(PullScatter(args));
    args.recv_rows = again.data();
    const std::unique_ptr<PullInParts> pull = MakeScatterPull(args);
    DoAll(*pull, 3 * kRowBytes);
    EXPECT_OK(pull->error());
    EXPECT_EQ(again.Copy(), rows.Copy()) << "rank " << r;
  }
}

// Parts that end inside of a token's sum, too.
TEST_F(PullInPartsTest, AGatherHasTheSameBits) {
  std::vector<reference::Bytes> expert_rows;
  std::vector<std::vector<float>> weights;
  for (int r = 0; r < problem_.num_ranks; ++r) {
    const std::int64_t total = TotalRecv(problem_.Spec(), plans_.Counts().data(), r);
    expert_rows.push_back(RandomRows(random_, total * kRowBytes, DataType::kBfloat16));
    weights.push_back(RandomFloats(random_, total));
  }
  const std::vector<Region> stages =
      StageGathers(problem_, plans_, expert_rows, weights, kRowBytes, true);
  const std::vector<StageRef> refs = Refs(stages);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    const std::int64_t tokens = problem_.NumTokens(r);
    PullGatherArgs args;
    args.plan = &plans_.View(r);
    args.sources = refs.data();
    args.dtype = DataType::kBfloat16;
    args.row_bytes = kRowBytes;
    args.num_tokens = tokens;
    Region sums(tokens * kRowBytes);
    std::vector<float> out_weights(problem_.topk[r].size());
    args.out = sums.data();
    args.out_weights = out_weights.data();
    EXPECT_OK(PullGather(args));
    for (const std::uint64_t part : {1, 100, 1000}) {
      Region again(tokens * kRowBytes);
      std::vector<float> weights_again(out_weights.size(), -1);
      args.out = again.data();
      args.out_weights = weights_again.data();
      const std::unique_ptr<PullInParts> pull = MakeGatherPull(args);
      const int num_parts = DoAll(*pull, part);
      EXPECT_OK(pull->error());
      EXPECT_EQ(again.Copy(), sums.Copy()) << "rank " << r << ", parts of " << part;
      EXPECT_EQ(weights_again, out_weights);
      if (part == 1) {
        EXPECT_GE(num_parts, tokens * static_cast<int>(kRowBytes) / 2);
      }
    }
  }
}

TEST_F(PullInPartsTest, WhatIsWrongIsFound) {
  std::vector<StageRef> refs = Refs(scatters_);
  PullScatterArgs args = Scatter(0, refs, 1 << 16);
  Region rows((1 << 16) * kRowBytes);
  args.recv_rows = rows.data();
  EXPECT_EQ(MakeScatterPull({})->error().fault, KernelFault::kNullArgument);
  EXPECT_EQ(MakeGatherPull({})->error().fault, KernelFault::kNullArgument);
  refs[1].bytes = 8;
  const std::unique_ptr<PullInParts> pull = MakeScatterPull(args);
  DoAll(*pull, 64);
  EXPECT_EQ(pull->error().fault, KernelFault::kStageTruncated);
  EXPECT_EQ(pull->error().fault, PullScatter(args).fault);
}

TEST_F(PullInPartsTest, APlanThatIsReadInPartsIsTheSame) {
  const RoutingPlanView& whole = plans_.View(1);
  for (const std::size_t part : {std::size_t{1}, std::size_t{100}, whole.used_bytes}) {
    PlanReader reader(plans_.ViewArgs(1));
    int num_parts = 1;
    while (reader.Some(part)) ++num_parts;
    RoutingPlanView view;
    EXPECT_OK(reader.View(&view));
    EXPECT_EQ(view.used_bytes, whole.used_bytes);
    EXPECT_EQ(view.num_routes, whole.num_routes);
    EXPECT_GE(num_parts, static_cast<int>(whole.used_bytes / (part + 8)));
  }
  plans_.Memory(1).data()[whole.used_bytes - 1] ^= 1;
  PlanReader reader(plans_.ViewArgs(1));
  while (reader.Some(64)) {
  }
  RoutingPlanView view;
  EXPECT_EQ(reader.View(&view).fault, KernelFault::kPlanChecksum);
}

// 240 ranks and 65,520 experts: 63 MB of counts, which are summed up for the checksum and added up.
TEST(PlanReaderTest, CountsOfManyRanksAndExpertsAreAddedUpInPartsToo) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  RoutingSpec spec;
  spec.num_ranks = 240;
  spec.num_experts = 65520;
  spec.top_k = 1;
  const std::vector<std::int32_t> counts(std::size_t{240} * 65520);
  std::vector<std::int32_t> token_counts(65520);
  std::int32_t total_recv = 0;
  Region plan(RoutingPlanBytes(spec));
  EXPECT_OK(BuildRoutingPlan({spec,
                              0,
                              kTestIds,
                              {},
                              counts.data(),
                              plan.data(),
                              plan.size(),
                              token_counts.data(),
                              &total_recv}));
  PlanReader reader({plan.data(), plan.size(), spec, 0, kTestIds});
  const auto now = [] { return std::chrono::steady_clock::now(); };
  std::chrono::duration<double, std::milli> longest{};
  std::size_t num_parts = 0;
  for (bool goes_on = true; goes_on; ++num_parts) {
    const auto began = now();
    goes_on = reader.Some(kPart);
    longest = std::max<std::chrono::duration<double, std::milli>>(longest, now() - began);
  }
  const auto began = now();
  RoutingPlanView view;
  EXPECT_OK(reader.View(&view));
  const std::chrono::duration<double, std::milli> last = now() - began;
  std::printf("%zu parts, the longest of %.2f ms; the last look: %.2f ms\n", num_parts,
              longest.count(), last.count());
  EXPECT_GE(num_parts, 2 * plan.size() / kPart);
}

}  // namespace
}  // namespace epd
