// Goal: whatever a peer writes into its stage, the readers stay inside it and inside their outputs,
// name the peer, and leave zeros. Run under the address sanitizer to see the first stray byte.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

constexpr std::uint64_t kRowBytes = 20;

class HostileStageTest : public testing::Test {
 protected:
  HostileStageTest() {
    problem_.num_ranks = 3;
    problem_.num_experts = 6;
    problem_.top_k = 2;
    problem_.alignment = 4;
    problem_.max_tokens = 6;
    problem_.owner = reference::ContiguousOwners(3, 6);
    problem_.topk = {{0, 1, 2, 3, 4, -1}, {5, 0, 1, 1}, {0, 2, 4, 1}};
    plans_ = std::make_unique<Plans>(problem_);
    Random random(3);
    for (int r = 0; r < 3; ++r) {
      rows_.push_back(RandomBytes(random, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random, problem_.topk[r].size()));
      expert_rows_.push_back(RandomBytes(random, plans_->TotalRecv(r) * kRowBytes));
      expert_weights_.push_back(RandomFloats(random, plans_->TotalRecv(r)));
    }
  }

  // Pulls for rank 0 into fresh outputs, which must be zeros after an error.
  KernelError PullScatterFrom(const std::vector<StageRef>& refs) {
    const std::int64_t capacity = plans_->TotalRecv(0);
    const Region out(capacity * kRowBytes);
    const Region weights(capacity * 4);
    const KernelError error = PullScatter({&plans_->View(0), refs.data(), kRowBytes, capacity,
                                           out.data(), reinterpret_cast<float*>(weights.data())});
    if (!error.ok()) {
      EXPECT_EQ(out.Copy(), reference::Bytes(out.size(), 0));
      EXPECT_EQ(weights.Copy(), reference::Bytes(weights.size(), 0));
    }
    return error;
  }

  KernelError PullGatherFrom(const std::vector<StageRef>& refs) {
    const std::int64_t num_tokens = problem_.NumTokens(0);
    const Region out(num_tokens * kRowBytes);
    const Region weights(num_tokens * 2 * 4);
    PullGatherArgs args;
    args.plan = &plans_->View(0);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.num_tokens = num_tokens;
    args.out = out.data();
    args.out_weights = reinterpret_cast<float*>(weights.data());
    const KernelError error = PullGather(args);
    if (!error.ok()) {
      EXPECT_EQ(out.Copy(), reference::Bytes(out.size(), 0));
      EXPECT_EQ(weights.Copy(), reference::Bytes(weights.size(), 0));
    }
    return error;
  }

  std::vector<Region> ScatterStages() {
    return StageScatters(problem_, *plans_, rows_, weights_, kRowBytes);
  }
  std::vector<Region> GatherStages() {
    return StageGathers(problem_, *plans_, expert_rows_, expert_weights_, kRowBytes, true);
  }

  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  std::vector<reference::Bytes> expert_rows_;
  std::vector<std::vector<float>> expert_weights_;
};

// One field of rank 1's stage set to a value that must be refused under this name.
struct Lie {
  KernelFault fault;
  std::size_t offset;
  std::uint32_t value;
};

TEST_F(HostileStageTest, EveryLieInAScatterHeaderIsNamed) {
  using Header = ScatterStageHeader;
  const std::size_t begins = sizeof(Header);
  const std::size_t routes = ScatterRoutesOffset(3);
  const Lie lies[] = {
      {KernelFault::kStageMagic, offsetof(Header, magic), 0},
      {KernelFault::kStageVersion, offsetof(Header, version), 9},
      {KernelFault::kStageRank, offsetof(Header, rank), 2},
      {KernelFault::kStagePlanId, offsetof(Header, plan_id), 41},
      {KernelFault::kStageNumRanks, offsetof(Header, num_ranks), 4},
      {KernelFault::kStageRowBytes, offsetof(Header, row_bytes), 24},
      {KernelFault::kStageWeights, offsetof(Header, has_weights), 0},
      {KernelFault::kStageWeights, offsetof(Header, has_weights), 7},
      {KernelFault::kStageNumRows, offsetof(Header, num_rows), 0xffffffff},
      {KernelFault::kStageNumRows, offsetof(Header, num_routes), 0xffffffff},
      {KernelFault::kStageOffset, offsetof(Header, rows_offset), 0x7fffffff},
      {KernelFault::kStageOffset, offsetof(Header, rows_offset) + 4, 0xffffffff},
      {KernelFault::kStageOffset, offsetof(Header, routes_offset), 0},
      {KernelFault::kStageOffset, offsetof(Header, total_bytes), 0},
      {KernelFault::kStageRouteBegin, begins + 4, 0x7fffffff},
      {KernelFault::kStageRouteBegin, begins, 0xffffffff},
      {KernelFault::kStageRouteCount, begins + 4, 2},
      {KernelFault::kStageRouteRow, routes, 2},
      {KernelFault::kStageRouteRow, routes, 0xffffffff},
      {KernelFault::kStageRouteSlot, routes + 4, 0},
      {KernelFault::kStageRouteSlot, routes + 4, 0xffffffff},
  };
  for (const Lie& lie : lies) {
    const std::vector<Region> stages = ScatterStages();
    std::memcpy(stages[1].data() + lie.offset, &lie.value, 4);
    const KernelError error = PullScatterFrom(Refs(stages));
    EXPECT_EQ(error.code, Code::kDataLoss) << lie.offset << " " << Text(error);
    EXPECT_EQ(error.fault, lie.fault) << lie.offset << " " << Text(error);
    EXPECT_EQ(error.rank, 1) << Text(error);
  }
}

TEST_F(HostileStageTest, EveryLieInAGatherHeaderIsNamed) {
  using Header = GatherStageHeader;
  const Lie lies[] = {
      {KernelFault::kStageMagic, offsetof(Header, magic), 0},
      {KernelFault::kStageVersion, offsetof(Header, version), 9},
      {KernelFault::kStageRank, offsetof(Header, rank), 2},
      {KernelFault::kStagePlanId, offsetof(Header, plan_id), 41},
      {KernelFault::kStageRowBytes, offsetof(Header, row_bytes), 24},
      {KernelFault::kStageWeights, offsetof(Header, has_weights), 0},
      {KernelFault::kStageNumRows, offsetof(Header, num_rows), 0xffffffff},
      {KernelFault::kStageOffset, offsetof(Header, rows_offset), 0x7fffffff},
      {KernelFault::kStageOffset, offsetof(Header, weights_offset), 0x7fffffff},
      {KernelFault::kStageOffset, offsetof(Header, total_bytes), 0},
  };
  for (const Lie& lie : lies) {
    const std::vector<Region> stages = GatherStages();
    std::memcpy(stages[1].data() + lie.offset, &lie.value, 4);
    const KernelError error = PullGatherFrom(Refs(stages));
    EXPECT_EQ(error.code, Code::kDataLoss) << lie.offset << " " << Text(error);
    EXPECT_EQ(error.fault, lie.fault) << lie.offset << " " << Text(error);
    EXPECT_EQ(error.rank, 1) << Text(error);
  }
}

TEST_F(HostileStageTest, TruncatedStagesAreNamed) {
  const std::vector<Region> scatter = ScatterStages();
  const std::vector<Region> gather = GatherStages();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{63}, scatter[1].size() - 1}) {
    std::vector<StageRef> refs = Refs(scatter);
    refs[1].bytes = bytes;
    EXPECT_EQ(PullScatterFrom(refs).fault, KernelFault::kStageTruncated) << bytes;
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{63}, gather[1].size() - 1}) {
    std::vector<StageRef> refs = Refs(gather);
    refs[1].bytes = bytes;
    EXPECT_EQ(PullGatherFrom(refs).fault, KernelFault::kStageTruncated) << bytes;
  }
}

TEST_F(HostileStageTest, MissingAndMisalignedRegionsAreTheCallersFault) {
  const std::vector<Region> stages = ScatterStages();
  std::vector<StageRef> refs = Refs(stages);
  refs[1] = {};
  EXPECT_EQ(PullScatterFrom(refs).fault, KernelFault::kNullArgument);
  refs[1] = {stages[1].data() + 4, stages[1].size() - 4};
  EXPECT_EQ(PullScatterFrom(refs).fault, KernelFault::kMisaligned);
}

// Changes 1 to 8 random words of header, route begins and routes: no result matters but that
// nothing outside is touched, and that an error leaves zeros.
TEST_F(HostileStageTest, RandomMutationsStayInBounds) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Random random(seed);
    SCOPED_TRACE("seed=" + std::to_string(seed));
    const bool scatter = seed % 2 == 0;
    const std::vector<Region> stages = scatter ? ScatterStages() : GatherStages();
    const Region& victim = stages[1];
    const std::int64_t reach = scatter ? 72 + 16 + 4 * 12 : 64;
    for (std::int64_t i = Uniform(random, 1, 8); i > 0; --i) {
      const std::size_t at = Uniform(random, 0, reach / 4 - 1) * 4;
      const std::uint32_t words[] = {0,
                                     1,
                                     0xffffffff,
                                     0x80000000,
                                     static_cast<std::uint32_t>(random()),
                                     static_cast<std::uint32_t>(Uniform(random, 0, 300))};
      std::memcpy(victim.data() + at, &words[Uniform(random, 0, 5)], 4);
    }
    const KernelError error =
        scatter ? PullScatterFrom(Refs(stages)) : PullGatherFrom(Refs(stages));
    refused += !error.ok();
    if (HasFailure()) break;
  }
  EXPECT_GT(refused, 1000);
}

// A peer that goes on writing while it is read: values are checked as they are used, not before.
// Not for the thread sanitizer, to which the attack itself is the finding.
#if !defined(__SANITIZE_THREAD__)
TEST_F(HostileStageTest, WritesDuringThePullStayInBounds) {
  const std::vector<Region> scatter = ScatterStages();
  const std::vector<Region> gather = GatherStages();
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    Random random(17);
    volatile std::uint32_t* words[] = {reinterpret_cast<volatile std::uint32_t*>(scatter[1].data()),
                                       reinterpret_cast<volatile std::uint32_t*>(gather[1].data())};
    const std::int64_t num_words[] = {34, 16};
    while (!stop.load(std::memory_order_relaxed)) {
      const int victim = static_cast<int>(Uniform(random, 0, 1));
      volatile std::uint32_t* word = words[victim] + Uniform(random, 0, num_words[victim] - 1);
      const std::uint32_t honest = *word;
      *word = static_cast<std::uint32_t>(random());
      *word = honest;
    }
  });
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    accepted += PullScatterFrom(Refs(scatter)).ok();
    accepted += PullGatherFrom(Refs(gather)).ok();
  }
  stop.store(true);
  attacker.join();
  EXPECT_GT(accepted, 0);  // else the loop tested the refusals only
}
#endif

}  // namespace
}  // namespace epd
