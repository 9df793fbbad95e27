// Goal: the staging of a formation that is over stays mapped for exactly as long as a use may touch it, wherever in the use
// its stream is, and whatever else streams do; a daemon that stops in order waits for what is in the streams; and no thread of a
// group ends a capture of somebody else's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "tests/unit/client/cuda/stream_group_fixture.h"

namespace epd::client {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPrepare = 0;
constexpr size_t kDispatch = 1;
// A use has a batch of stream memory operations at each step; between the first and the last it may touch staging.
constexpr int kNumSteps = 3;

class StreamDrainTest : public StreamGroupTest {
 protected:
  void PutSite(size_t site) {
    for (auto& rank : ranks_) {
      const Status status =
          rank->group->Put(*rank->sites[site], rank->BuffersOf(site), node_.stream(rank->rank_));
      EXPECT_TRUE(status.ok()) << status.message;
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }
  void CaptureSite(size_t site) {
    graphs_.clear();
    for (auto& rank : ranks_) {
      node_.graph().Begin();
      const Status status =
          rank->group->Put(*rank->sites[site], rank->BuffersOf(site), node_.stream(rank->rank_));
      graphs_.push_back(node_.graph().End());
      ASSERT_TRUE(status.ok()) << status.message;
    }
  }
  // Replays the graphs, of rank 0 only `num_calls` calls, behind which its stream is then held up. The number of its steps
  // before that.
  int ReplayUntil(size_t num_calls) {
    EXPECT_EQ(cuda::FakeGraph::Replay(graphs_[1], node_.stream(1)), cuda::kSuccess);
    const int before = node_.driver().CountCalls("cuStreamBatchMemOp");
    const auto middle = graphs_[0].begin() + static_cast<std::ptrdiff_t>(num_calls);
    const cuda::FakeGraph::Calls first(graphs_[0].begin(), middle);
    const cuda::FakeGraph::Calls rest(middle, graphs_[0].end());
    EXPECT_EQ(cuda::FakeGraph::Replay(first, node_.stream(0)), cuda::kSuccess);
    const int steps = node_.driver().CountCalls("cuStreamBatchMemOp") - before;
    came_ = false;
    goes_on_ = false;
    EXPECT_EQ(node_.driver().Put(node_.stream(0),
                                 [this] {
                                   came_ = true;
                                   return goes_on_.load();
                                 }),
              cuda::kSuccess);
    EXPECT_EQ(cuda::FakeGraph::Replay(rest, node_.stream(0)), cuda::kSuccess);
    EXPECT_TRUE(StreamNode::Await([this] { return came_.load(); }));
    return steps;
  }
  int NumUnmapped() { return node_.driver().CountCalls("cuMemUnmap"); }
  // Of one rank's mappings.
  static int NumMappings() { return GetParam() == Executor::kWorker ? 1 : static_cast<int>(kR); }
  bool AreStreamed(uint32_t rank) {
    bool streamed = false;
    const shm::SlotsView& view = node_.slots(rank);
    view.ForEachUsedSlot([&](uint32_t i) { streamed |= view.IsStreamed(i); });
    return streamed;
  }
  void StopInOrder() {
    for (uint32_t r = 0; r < kR; ++r)
      node_.group(r).OnDraining({Code::kUnavailable, "a daemon stops", true});
  }
  void ExpectForgotten() {
    for (uint32_t r = 0; r < kR; ++r)
      EXPECT_TRUE(StreamNode::Await([&] { return !AreStreamed(r); })) << "rank " << r;
  }

  std::atomic<bool> came_ = false;
  std::atomic<bool> goes_on_ = false;
};
INSTANTIATE_TEST_SUITE_P(Executors, StreamDrainTest, kExecutors, NameOf);

TEST_P(StreamDrainTest, StagingIsUnmappedAsSoonAsAReplayIsInNoUseAndNoSooner) {
  Refill(1);
  PutSite(kPrepare);
  CaptureSite(kDispatch);
  for (size_t cut = 0; cut <= graphs_[0].size(); ++cut) {
    PutSite(kPrepare);
    const int steps = ReplayUntil(cut);
    const bool in_use = steps > 0 && steps < kNumSteps;
    const int before = NumUnmapped();
    // The main thread's, of a stream that is nobody's.
    node_.graph().Begin();
    uint32_t byte = 0;
    EXPECT_EQ(node_.graph().table().fill_async(reinterpret_cast<cuda::DevicePointer>(&byte), 1, 1,
                                               node_.stream(1)),
              cuda::kSuccess);
    std::thread replacing([this] { node_.ReplaceWorker(); });
    const int want = before + NumMappings() * (in_use ? 1 : 2);
    EXPECT_TRUE(StreamNode::Await([&] { return NumUnmapped() >= want; })) << "cut " << cut;
    if (in_use) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(NumUnmapped(), want) << "cut " << cut << " behind step " << steps;
    goes_on_ = true;
    replacing.join();
    ASSERT_TRUE(node_.AwaitStreams());
    node_.FinishReplacement();
    EXPECT_EQ(node_.graph().End().size(), 1u) << "cut " << cut << ": the capture was ended";
    EXPECT_EQ(CheckAll().ok(), steps > 1) << "cut " << cut << ": only what is published is there";
  }
  Refill(2);
  PutAll();
  CheckOutputs("after");
}

// It would let them in, and they would touch what is not mapped any more.
TEST_P(StreamDrainTest, ReplaysThatBeginThenAreRefusedAlsoByAWorkerThatHasNotHeardOfTheEnd) {
  Refill(1);
  Capture();
  Replay();
  node_.EndFormation();
  Replay();
  ExpectZeros("the staging is not mapped");
  EXPECT_EQ(CheckAll().code, Code::kAborted);
  node_.FinishReplacement();
  Refill(2);
  Replay();
  CheckOutputs("after");
}

TEST_P(StreamDrainTest, StagingStaysMappedUntilWhatWasPutHasEnded) {
  Refill(1);
  node_.Hold(true);
  for (auto& rank : ranks_) EXPECT_TRUE(rank->Put().ok());
  std::thread replacing([this] { node_.ReplaceWorker(); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(NumUnmapped(), 0);
  node_.Hold(false);
  replacing.join();
  EXPECT_EQ(NumUnmapped(), 2 * NumMappings());
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_EQ(CheckAll().code, Code::kAborted);
  node_.FinishReplacement();
}

// Only an error that no context outlives says that nothing runs.
TEST_P(StreamDrainTest, AnErrorOfTheDriverIsNoEndOfAUseUnlessItIsSticky) {
  Refill(1);
  node_.Hold(true);
  for (auto& rank : ranks_) EXPECT_TRUE(rank->Put().ok());
  constexpr cuda::Result kUnknown = 999;
  node_.driver().Fail("cuEventQuery", kUnknown, 0, 1 << 30);
  std::thread replacing([this] { node_.ReplaceWorker(); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(NumUnmapped(), 0);
  node_.driver().Fail("cuEventQuery", cuda::kIllegalAddress, 0, 1 << 30);
  EXPECT_TRUE(StreamNode::Await([&] { return NumUnmapped() == 2 * NumMappings(); }));
  replacing.join();
  node_.driver().Fail("cuEventQuery", cuda::kSuccess, 0, 0);
  node_.Hold(false);
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_FALSE(CheckAll().ok());
  node_.FinishReplacement();
}

TEST_P(StreamDrainTest, AStopInOrderWaitsForWhatWasPut) {
  Refill(1);
  node_.Hold(true);
  for (auto& rank : ranks_) EXPECT_TRUE(rank->Put().ok());
  StopInOrder();
  std::this_thread::sleep_for(milliseconds(300));
  for (uint32_t r = 0; r < kR; ++r) EXPECT_TRUE(AreStreamed(r));
  node_.Hold(false);
  ASSERT_TRUE(node_.AwaitStreams());
  CheckOutputs("put before the stop");
  ExpectForgotten();
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(StreamDrainTest, AStopInOrderWaitsForAReplayThatIsInAUse) {
  Refill(1);
  Capture();
  constexpr size_t kWithinTheFirst = 8;
  ASSERT_EQ(ReplayUntil(kWithinTheFirst), 1);
  StopInOrder();
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_TRUE(AreStreamed(0));
  goes_on_ = true;
  ASSERT_TRUE(node_.AwaitStreams());
  CheckOutputs("in a replay at the stop");
  ExpectForgotten();
  EXPECT_TRUE(CheckAll().ok());
}

// A driver whose queue is full holds up whoever launches, for as long as the stream waits for others.
class HeldUpPut : public StreamDrainTest {
 protected:
  void SetUp() override {
    Refill(1);
    ASSERT_EQ(node_.driver().table().stream_create(&second_, 1), cuda::kSuccess);
    node_.driver().LimitStream(node_.stream(0), 4);
    put_ = std::async(std::launch::async, [this] { return ranks_[0]->Put(); });
    ASSERT_TRUE(StreamNode::Await([this] { return node_.driver().num_held_up() == 1; }));
  }
  void TearDown() override {
    EndHoldUp();
    node_.driver().table().stream_destroy(second_);
  }
  void EndHoldUp() { node_.driver().LimitStream(node_.stream(0), 0); }
  // Whether `act` ends while the put is held up.
  bool Ends(std::function<void()> act) {
    other_ = std::async(std::launch::async, std::move(act));
    return other_.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  }
  // What the put or what is in the streams has met.
  Status Failure() {
    Status put = put_.get();
    return put.ok() ? CheckAll() : put;
  }
  bool HasPut() { return put_.wait_for(std::chrono::seconds(10)) == std::future_status::ready; }

  cuda::Stream second_ = nullptr;  // Of rank 0.
  std::future<Status> put_;
  std::future<void> other_;
};
INSTANTIATE_TEST_SUITE_P(Executors, HeldUpPut, kExecutors, NameOf);

TEST_P(HeldUpPut, KeepsNobodyElseWaiting) {
  EXPECT_TRUE(Ends([this] { (void)ranks_[0]->group->Check(); }));
  EXPECT_TRUE(Ends([this] { (void)ranks_[0]->group->formation(); }));
  EXPECT_EQ(node_.driver().num_held_up(), 1) << "it is held up meanwhile";
  EndHoldUp();
  EXPECT_TRUE(ranks_[1]->Put().ok());
  ASSERT_TRUE(HasPut());
  EXPECT_TRUE(put_.get().ok());
  ASSERT_TRUE(node_.AwaitStreams());
  CheckOutputs("put while the queue was full");
}

// Streams of two ranks wait for each other by pairs, so one that is full must not keep another one empty.
TEST_P(HeldUpPut, KeepsNoOtherStreamOfItsGroupWaiting) {
  std::vector<std::unique_ptr<HeldSite>> sites;
  for (auto& rank : ranks_) {
    StreamCall call;
    call.rank = rank->rank_;
    call.program[0] = 9;
    call.top_k = kK;
    call.num_tokens = kT;
    ASSERT_TRUE(rank->group->AddSite(call, &sites.emplace_back()).ok());
  }
  Device<int32_t> counts{3};
  Device<int32_t> total{1};
  Device<uint8_t> plan{RoutingPlanBytes(RankProgram::Spec())};
  const auto put = [&](uint32_t rank, cuda::Stream stream) {
    StreamBuffers buffers = ranks_[rank]->BuffersOf(kPrepare);
    buffers.token_counts = counts.data;
    buffers.total_recv = total.data;
    buffers.handle_mem = plan.data;
    return ranks_[rank]->group->Put(*sites[rank], buffers, stream);
  };
  EXPECT_TRUE(Ends([&] { EXPECT_TRUE(put(0, second_).ok()); }));
  EXPECT_TRUE(put(1, node_.stream(1)).ok());
  EXPECT_TRUE(StreamNode::Await(
      [&] { return node_.driver().table().stream_query(second_) == cuda::kSuccess; }));
  EXPECT_EQ(node_.driver().num_held_up(), 1) << "it is held up meanwhile";
  EndHoldUp();
  EXPECT_TRUE(ranks_[1]->Put().ok());
  ASSERT_TRUE(HasPut());
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(HeldUpPut, IsEndedByItsGroupWhereNobodyElseAnswersAnyMore) {
  node_.EndDaemon();
  EXPECT_TRUE(HasPut());
  EndHoldUp();
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_EQ(Failure().code, Code::kUnavailable);
}

TEST_P(HeldUpPut, KeepsTheStagingMappedUntilItHasEnded) {
  std::thread replacing([this] { node_.ReplaceWorker(); });
  EXPECT_TRUE(HasPut()) << "what it waits for is answered ABORTED";
  EndHoldUp();
  replacing.join();
  EXPECT_EQ(NumUnmapped(), 2 * NumMappings());
  ASSERT_TRUE(node_.AwaitStreams());
  EXPECT_EQ(Failure().code, Code::kAborted);
  node_.FinishReplacement();
  Refill(2);
  PutAll();
  CheckOutputs("after");
}

}  // namespace
}  // namespace epd::client
