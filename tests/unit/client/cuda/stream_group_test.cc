// Goal: five operations that are put into streams once, or captured once and replayed a thousand
// times with other data and routes, give what the reference gives; failures between are seen later
// and leave zeros; workers may be replaced, and graphs, sites and groups go in any order.
#include "client/cuda/stream_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "kernels/plan_checksum.h"
#include "kernels/routing_plan.h"
#include "tests/unit/client/cuda/stream_node.h"
#include "tests/unit/kernels/reference.h"

namespace epd::client {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint32_t kT = 6;  // Tokens of a call.
constexpr uint32_t kC = StreamNode::kCapacity;
constexpr uint32_t kH = StreamNode::kHidden;
constexpr uint32_t kK = StreamNode::kTopK;

template <typename T>
struct alignas(64) Device {
  explicit Device(size_t count) : size(count), data(static_cast<T*>(aligned_alloc(64, Bytes()))) {
    std::memset(data, 0xcd, Bytes());
  }
  ~Device() { free(data); }
  Device(const Device&) = delete;
  size_t Bytes() const { return (size * sizeof(T) + 63) / 64 * 64 + 64; }
  std::vector<T> Copy() const { return Copy(size); }
  std::vector<T> Copy(size_t count) const { return {data, data + count}; }
  const size_t size;
  T* const data;
};

struct Sizes {
  uint32_t tokens = kT;
  uint32_t capacity = kC;
  bool drop = false;
};

// One rank's program: prepare, dispatch, combine, and their two transposes, on buffers that stay.
class RankProgram {
 public:
  RankProgram(StreamNode& node, uint32_t rank, Sizes sizes)
      : node_(node),
        rank_(rank),
        tokens_(sizes.tokens),
        capacity_(sizes.capacity),
        group(node.Attach(rank)) {
    Add(shm::Kind::kPrepare, false);
    Add(shm::Kind::kDispatch, true);
    Add(shm::Kind::kCombine, false);
    Add(shm::Kind::kDispatchBackward, true);
    Add(shm::Kind::kCombineBackward, false);
  }

  // The whole program, into the stream or into the graph that is being captured.
  Status Put() {
    for (size_t i = 0; i < sites.size(); ++i) {
      if (Status s = group->Put(*sites[i], BuffersOf(i), node_.stream(rank_)); !s.ok()) return s;
    }
    return {};
  }

  StreamBuffers BuffersOf(size_t i) {
    StreamBuffers b;
    b.handle_mem = plan.data;
    if (i == 0) {
      b.topk_idx = topk.data;
      b.idx_bytes = 8;
      b.token_counts = counts.data;
      b.num_token_counts = counts.size;
      b.total_recv = total.data;
    } else if (i == 1) {
      b.rows = tokens.data;
      b.weights = weights.data;
      b.out_rows = recv.data;
      b.out_weights = recv_weights.data;
    } else if (i == 2) {
      b.rows = recv.data;
      b.out_rows = combined.data;
    } else if (i == 3) {
      b.rows = recv.data;
      b.weights = recv_weights.data;
      b.out_rows = grad_tokens.data;
      b.out_weights = grad_weights.data;
    } else {
      b.rows = combined.data;
      b.out_rows = grad_expert.data;
    }
    return b;
  }

  StreamNode& node_;
  const uint32_t rank_;
  const uint32_t tokens_;
  const uint32_t capacity_;  // Of the call; its buffers have room for more.
  std::shared_ptr<StreamGroup> group;
  std::vector<std::unique_ptr<HeldSite>> sites;
  Device<int64_t> topk{kT * kK};
  Device<int32_t> counts{3};  // One more than this rank has experts.
  Device<int32_t> total{1};
  Device<uint8_t> plan{RoutingPlanBytes(Spec())};
  Device<float> tokens{kT * kH};
  Device<float> weights{kT * kK};
  Device<float> recv{kC * kH};
  Device<float> recv_weights{kC};
  Device<float> combined{kT * kH};
  Device<float> grad_tokens{kT * kH};
  Device<float> grad_weights{kT * kK};
  Device<float> grad_expert{kC * kH};

  static RoutingSpec Spec() {
    RoutingSpec spec;
    spec.num_ranks = StreamNode::kNumRanks;
    spec.num_experts = StreamNode::kNumExperts;
    spec.top_k = kK;
    spec.alignment = 4;
    spec.max_tokens = StreamNode::kMaxTokens;
    return spec;
  }

 private:
  void Add(shm::Kind kind, bool has_weights) {
    StreamCall call;
    call.kind = kind;
    call.rank = rank_;
    call.program[0] = 5;
    call.ordinal = static_cast<uint32_t>(sites.size());
    call.top_k = kK;
    call.alignment = 4;
    call.num_tokens = tokens_;
    if (kind != shm::Kind::kPrepare) {
      call.recv_capacity = capacity_;
      call.dtype = 1;
      call.row_bytes = kH * 4;
      call.has_weights = has_weights;
    }
    std::unique_ptr<HeldSite> site;
    const Status status = group->AddSite(call, &site);
    EXPECT_TRUE(status.ok()) << status.message;
    sites.push_back(std::move(site));
  }
};

// Whoever moves the rows: the worker, or the ranks' own kernels.
class StreamGroupTest : public ::testing::TestWithParam<Executor> {
 protected:
  static constexpr uint32_t kR = StreamNode::kNumRanks;

  explicit StreamGroupTest(Sizes sizes = {}) : sizes_(sizes), node_(GetParam(), sizes.drop) {
    for (uint32_t r = 0; r < kR; ++r) {
      ranks_.push_back(std::make_unique<RankProgram>(node_, r, sizes));
    }
  }
  ~StreamGroupTest() override {
    for (auto& rank : ranks_) {
      if (rank == nullptr) continue;
      rank->sites.clear();
      rank->group->Close();
    }
    node_.End();
  }

  // New rows, weights and routes, the same addresses.
  void Refill(uint64_t seed) {
    std::mt19937_64 random(seed);
    problem_.num_ranks = kR;
    problem_.num_experts = StreamNode::kNumExperts;
    problem_.top_k = kK;
    problem_.alignment = 4;
    problem_.max_tokens = StreamNode::kMaxTokens;
    problem_.owner = reference::ContiguousOwners(kR, StreamNode::kNumExperts);
    problem_.topk.assign(kR, {});
    for (auto& rank : ranks_) {
      for (uint32_t i = 0; i < rank->tokens_ * kK; ++i) {
        rank->topk.data[i] = static_cast<int64_t>(random() % 5) - 1;  // -1: no route.
        problem_.topk[rank->rank_].push_back(rank->topk.data[i]);
        rank->weights.data[i] = static_cast<float>(random() % 100);
      }
      for (size_t i = 0; i < rank->tokens_ * kH; ++i) {
        rank->tokens.data[i] = static_cast<float>(random() % 1000);
      }
    }
  }

  // Every output of every rank against the reference.
  void CheckOutputs(const std::string& when) {
    std::vector<std::vector<float>> sums(kR, std::vector<float>(kT * kH));
    std::vector<std::vector<float>> back(kR, std::vector<float>(kT * kK));
    for (uint32_t r = 0; r < kR; ++r) {
      const reference::RecvBuffer want = reference::Recv(problem_, static_cast<int>(r));
      std::vector<float> rows(size_t{sizes_.capacity} * kH);
      std::vector<float> weights(sizes_.capacity);
      for (size_t slot = 0; slot < std::min<size_t>(want.slots.size(), sizes_.capacity); ++slot) {
        const reference::Slot& from = want.slots[slot];
        if (from.source < 0) continue;
        const RankProgram& source = *ranks_[static_cast<size_t>(from.source)];
        const auto token = static_cast<size_t>(from.token);
        const size_t route = token * kK + static_cast<size_t>(from.k);
        weights[slot] = source.weights.data[route];
        back[from.source][route] = weights[slot];
        for (size_t h = 0; h < kH; ++h) {
          rows[slot * kH + h] = source.tokens.data[token * kH + h];
          sums[from.source][token * kH + h] += rows[slot * kH + h];
        }
      }
      EXPECT_EQ(ranks_[r]->recv.Copy(rows.size()), rows) << when << " rank " << r;
      EXPECT_EQ(ranks_[r]->recv_weights.Copy(weights.size()), weights) << when;
      EXPECT_EQ(*ranks_[r]->total.data, static_cast<int32_t>(want.slots.size())) << when;
      EXPECT_EQ(ranks_[r]->counts.data[0], want.zone[0]) << when;
      EXPECT_EQ(ranks_[r]->counts.data[2], 0) << "entries of no expert are zeros";
    }
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(ranks_[r]->combined.Copy(), sums[r]) << when << " rank " << r;
      EXPECT_EQ(ranks_[r]->grad_tokens.Copy(), sums[r]) << when;
      EXPECT_EQ(ranks_[r]->grad_weights.Copy(), back[r]) << when;
    }
  }
  void ExpectZeros(const std::string& when) {
    for (const auto& rank : ranks_) {
      const size_t slots = size_t{sizes_.capacity} * kH;
      EXPECT_THAT(rank->recv.Copy(slots), Each(0.0f)) << when;
      EXPECT_THAT(rank->combined.Copy(), Each(0.0f)) << when;
      EXPECT_THAT(rank->grad_tokens.Copy(), Each(0.0f)) << when;
      EXPECT_THAT(rank->grad_expert.Copy(slots), Each(0.0f)) << when;
    }
  }

  void PutAll() {
    node_.Hold(true);
    for (auto& rank : ranks_) {
      const Status status = rank->Put();
      EXPECT_TRUE(status.ok()) << status.message;
    }
    node_.Hold(false);
    ASSERT_TRUE(node_.AwaitStreams());
  }
  void Capture() {
    for (auto& rank : ranks_) {
      node_.graph().Begin();
      const Status status = rank->Put();
      graphs_.push_back(node_.graph().End());
      ASSERT_TRUE(status.ok()) << status.message;
    }
  }
  void Replay() {
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(cuda::FakeGraph::Replay(graphs_[r], node_.stream(r)), cuda::kSuccess);
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }
  Status CheckAll() {
    Status first;
    for (auto& rank : ranks_) {
      Status status = rank->group->Check();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
  const Sizes sizes_;
  StreamNode node_;
  std::vector<std::unique_ptr<RankProgram>> ranks_;
  std::vector<cuda::FakeGraph::Calls> graphs_;
  reference::Problem problem_;
};

const auto kExecutors = ::testing::Values(Executor::kWorker, Executor::kClient);
std::string NameOf(const ::testing::TestParamInfo<Executor>& one) {
  return one.param == Executor::kWorker ? "WorkerMoves" : "RanksMove";
}
INSTANTIATE_TEST_SUITE_P(Executors, StreamGroupTest, kExecutors, NameOf);

TEST_P(StreamGroupTest, OperationsPutIntoStreamsGiveWhatTheReferenceGives) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Refill(seed);
    PutAll();
    CheckOutputs("seed " + std::to_string(seed));
  }
  EXPECT_TRUE(CheckAll().ok());
}

// Four operations have a side of C slots, and with the worker's executor another of T tokens.
TEST_P(StreamGroupTest, CopiesMoveTheRowsThatThereAreAndNotTheRoomForThem) {
  for (uint64_t seed = 1, want = 0; seed <= 5; ++seed) {
    Refill(seed);
    PutAll();
    for (const int r : {0, 1}) {
      want += 4 * reference::Recv(problem_, r).slots.size();
      if (GetParam() == Executor::kWorker) want += 4 * kT;
    }
    EXPECT_EQ(node_.num_copied_rows(), want) << "seed " << seed;
  }
  EXPECT_EQ(node_.num_gates_in_slots(), 0u) << "a slot is host memory, and rows are many";
}

TEST_P(StreamGroupTest, CapturedOnceReplayedAThousandTimes) {
  Refill(1);
  Capture();
  EXPECT_EQ(node_.num_moves(), 0) << "a capture runs nothing";
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Refill(seed);
    Replay();
    if (seed % 50 == 1 || seed == 1000) CheckOutputs("seed " + std::to_string(seed));
  }
  EXPECT_EQ(node_.num_moves(), GetParam() == Executor::kWorker ? 5000 : 1000) << "or prepares only";
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(StreamGroupTest, AnErrorBetweenReplaysIsSeenLaterAndLeavesZeros) {
  Refill(1);
  Capture();
  Replay();
  CheckOutputs("before");
  node_.FailMoves(absl::DataLossError("rank 1's stage is damaged"));
  Replay();
  ExpectZeros("failed");
  node_.FailMoves(absl::OkStatus());
  Refill(2);
  Replay();
  CheckOutputs("after");
  const Status seen = ranks_[0]->Put();
  EXPECT_EQ(seen.code, Code::kDataLoss) << "the next call of a handler";
  EXPECT_THAT(seen.message, HasSubstr("rank 1's stage is damaged"));
  EXPECT_EQ(ranks_[1]->group->Check().code, Code::kDataLoss) << "or somebody who asks";
  EXPECT_TRUE(CheckAll().ok()) << "once";
}

// As a worker does that finds the last step of a use that the worker before it had answered.
TEST_P(StreamGroupTest, AWorkerThatDoesNotKnowTheEndOfAGoodUseFailsNothing) {
  Refill(1);
  PutAll();
  CheckOutputs("good");
  int num_pulled = 0;
  node_.slots(0).ForEachUsedSlot([&](uint32_t i) {
    if (node_.slots(0).slot(i).request.step != shm::Step::kStreamPulled) return;
    node_.slots(0).slot(i).failed = static_cast<uint32_t>(Code::kAborted);
    ++num_pulled;
  });
  EXPECT_EQ(num_pulled, 5);
  EXPECT_TRUE(CheckAll().ok());
  node_.slots(0).ForEachUsedSlot([&](uint32_t i) { EXPECT_EQ(node_.slots(0).slot(i).failed, 0u); });
}

TEST_P(StreamGroupTest, ReplaysSurviveAReplacedWorker) {
  Refill(1);
  Capture();
  Replay();
  for (int n = 0; n < 3; ++n) {
    node_.ReplaceWorker();
    // As long as the staging is not there, everything fails and nothing hangs.
    Replay();
    Replay();
    ExpectZeros("without staging");
    EXPECT_EQ(CheckAll().code, Code::kAborted);
    node_.FinishReplacement();
    Refill(static_cast<uint64_t>(n) + 10);
    Replay();
    CheckOutputs("replacement " + std::to_string(n));
  }
}

// A context that captures cannot be waited for, and its other streams work on.
TEST_P(StreamGroupTest, StagingStaysMappedUntilReplaysHaveEndedAlsoWhileAStreamCaptures) {
  Refill(1);
  Capture();
  Replay();
  node_.Hold(true);
  for (uint32_t r = 0; r < kR; ++r) {
    EXPECT_EQ(cuda::FakeGraph::Replay(graphs_[r], node_.stream(r)), cuda::kSuccess);
  }
  node_.graph().Begin();
  std::thread replacing([this] { node_.ReplaceWorker(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_THAT(node_.driver().violations(), ::testing::IsEmpty());
  node_.graph().End();
  node_.Hold(false);
  replacing.join();
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_EQ(CheckAll().code, Code::kAborted);
  node_.FinishReplacement();
  Refill(2);
  Replay();
  CheckOutputs("after");
}

TEST_P(StreamGroupTest, WhatNobodyAnswersAnyMoreEndsByItself) {
  Refill(1);
  Capture();
  Replay();
  node_.EndDaemon();
  for (int n = 0; n < 3; ++n) Replay();
  ExpectZeros("the daemon is gone");
  EXPECT_EQ(CheckAll().code, Code::kUnavailable);
  EXPECT_EQ(ranks_[0]->Put().code, Code::kUnavailable);
}

TEST_P(StreamGroupTest, GraphsOutliveTheGroupAndTheGroupItsSites) {
  Refill(1);
  Capture();
  ranks_[0]->group->Close();
  ranks_[1]->group->Close();
  Replay();
  CheckOutputs("closed, and still a member");
  EXPECT_EQ(ranks_[0]->Put().code, Code::kFailedPrecondition);
  node_.EndDaemon();
  Replay();
  ExpectZeros("the graphs are all that is left");
  for (auto& rank : ranks_) rank->sites.clear();
}

TEST_P(StreamGroupTest, SitesMayGoFirst) {
  Refill(1);
  PutAll();
  for (auto& rank : ranks_) rank->sites.clear();
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(StreamGroupTest, BadExpertsFailOnEveryRank) {
  Refill(1);
  ranks_[0]->topk.data[3] = 99;
  PutAll();
  ExpectZeros("bad");
  for (auto& rank : ranks_) {
    const Status status = rank->group->Check();
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_THAT(status.message, HasSubstr("at index 3"));
  }
}

TEST_P(StreamGroupTest, MissingAndMisalignedBuffersAreNamed) {
  StreamBuffers buffers = ranks_[0]->BuffersOf(1);
  buffers.rows = static_cast<const char*>(buffers.rows) + 4;
  Status status = ranks_[0]->group->Put(*ranks_[0]->sites[1], buffers, node_.stream(0));
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("rows"));
  buffers = ranks_[0]->BuffersOf(0);
  buffers.total_recv = nullptr;
  status = ranks_[0]->group->Put(*ranks_[0]->sites[0], buffers, node_.stream(0));
  EXPECT_THAT(status.message, HasSubstr("total_recv"));
}

TEST_P(StreamGroupTest, ADriverThatRefusesIsNamed) {
  node_.driver().Fail("cuStreamBatchMemOp", 801);
  Refill(1);
  const Status status = ranks_[0]->Put();
  EXPECT_EQ(status.code, Code::kInternal);
  EXPECT_THAT(status.message, HasSubstr("cuStreamBatchMemOp"));
}

// What a rank's kernels find before they move anything fails the use on every rank.
class RanksMove : public StreamGroupTest {
 protected:
  // The prepare, `harm`, and the dispatch behind it, on every rank.
  void DispatchAfter(const std::function<void()>& harm) {
    Refill(1);
    PutSite(0);
    harm();
    PutSite(1);
    for (auto& rank : ranks_) {
      EXPECT_THAT(rank->recv.Copy(), Each(0.0f));
      EXPECT_THAT(rank->recv_weights.Copy(), Each(0.0f));
    }
  }
  void PutSite(size_t site) {
    for (auto& rank : ranks_) {
      const Status status =
          rank->group->Put(*rank->sites[site], rank->BuffersOf(site), node_.stream(rank->rank_));
      EXPECT_TRUE(status.ok()) << status.message;
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }
  PlanHeader& HeaderOf(uint32_t rank) {
    return *reinterpret_cast<PlanHeader*>(ranks_[rank]->plan.data);
  }
  void ExpectAll(Code code, const std::string& text) {
    for (auto& rank : ranks_) {
      const Status status = rank->group->Check();
      EXPECT_EQ(status.code, code) << status.message;
      EXPECT_THAT(status.message, HasSubstr("rank=1 host=h"));
      EXPECT_THAT(status.message, HasSubstr(text));
    }
    Refill(2);
    PutAll();
    CheckOutputs("after");
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, RanksMove, ::testing::Values(Executor::kClient), NameOf);

TEST_P(RanksMove, ADamagedPlanIsNamedOnEveryRank) {
  DispatchAfter([this] { ranks_[1]->plan.data[PlanTableOffset(kR, 4) + 4] ^= 1; });
  ExpectAll(Code::kDataLoss, "checksum of the routing plan");
}

TEST_P(RanksMove, APlanOfAnotherGroupIsNamedOnEveryRank) {
  DispatchAfter([this] {
    PlanHeader& header = HeaderOf(1);
    header.group_id = 5;
    header.checksum = PlanChecksum(
        &header, PlanUsedBytes(RankProgram::Spec(), header.num_tokens, header.num_routes));
  });
  ExpectAll(
      Code::kInvalidArgument,
      "got 0x0000000000000005, expected 0x000000000000004d; handle_mem belongs to another group");
}

// Some replays need more slots than the calls have, others do not.
constexpr uint32_t kFewSlots = 14;
class TooManyRows : public StreamGroupTest {
 protected:
  explicit TooManyRows(bool drop = false)
      : StreamGroupTest({.capacity = kFewSlots, .drop = drop}) {}

  // Slots that a rank needs by the routes of the last Refill.
  size_t DemandOf(uint32_t rank) const {
    return reference::Recv(problem_, static_cast<int>(rank)).slots.size();
  }
  std::string WhoOverflows() const {
    const uint32_t worst = DemandOf(1) > DemandOf(0) ? 1 : 0;
    return "rank=" + std::to_string(worst) + " host=h";
  }
  bool AnyOverflows() const { return std::max(DemandOf(0), DemandOf(1)) > kFewSlots; }
};
INSTANTIATE_TEST_SUITE_P(Executors, TooManyRows, kExecutors, NameOf);

TEST_P(TooManyRows, FailThatReplayOnEveryRankAndNoOther) {
  Refill(1);
  Capture();
  int num_over = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Refill(seed);
    Replay();
    const std::string when = "seed " + std::to_string(seed);
    if (!AnyOverflows()) {
      CheckOutputs(when);
      EXPECT_TRUE(CheckAll().ok()) << when;
      continue;
    }
    ++num_over;
    ExpectZeros(when);
    for (auto& rank : ranks_) {
      const Status status = rank->group->Check();
      EXPECT_EQ(status.code, Code::kResourceExhausted) << when << ": " << status.message;
      EXPECT_THAT(status.message, HasSubstr(WhoOverflows())) << when;
      const size_t demand = std::max(DemandOf(0), DemandOf(1));
      EXPECT_THAT(status.message, HasSubstr(std::to_string(demand) + " slots, its capacity is 14"));
    }
  }
  EXPECT_GT(num_over, 20);
  EXPECT_LT(num_over, 180);
}

class DroppedRows : public TooManyRows {
 protected:
  DroppedRows() : TooManyRows(true) {}
};
INSTANTIATE_TEST_SUITE_P(Executors, DroppedRows, kExecutors, NameOf);

TEST_P(DroppedRows, AreNoErrorAndTheOthersAreThere) {
  Refill(1);
  Capture();
  int num_over = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Refill(seed);
    Replay();
    CheckOutputs("seed " + std::to_string(seed));
    num_over += AnyOverflows() ? 1 : 0;
  }
  EXPECT_GT(num_over, 20);
  EXPECT_TRUE(CheckAll().ok());
}

class WithoutTokens : public StreamGroupTest {
 protected:
  WithoutTokens() : StreamGroupTest({.tokens = 0}) {}
};

INSTANTIATE_TEST_SUITE_P(Executors, WithoutTokens, kExecutors, NameOf);

TEST_P(WithoutTokens, NothingMovesAndEverythingEnds) {
  Refill(1);
  PutAll();
  for (auto& rank : ranks_) {
    EXPECT_EQ(*rank->total.data, 0);
    EXPECT_THAT(rank->recv.Copy(), Each(0.0f));
  }
  EXPECT_TRUE(CheckAll().ok());
}

}  // namespace
}  // namespace epd::client
