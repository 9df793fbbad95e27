// Goal: ranks of one process are let onto one GPU only where each has hardware queues of its own, since a rank whose queue another
// one waits in waits for ever; whoever is refused hears who is there, what is set and what to set.
#include "client/cuda/hardware_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <numeric>

#include "tests/unit/client/cuda/stream_node.h"

namespace epd::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The last of `num_ranks` that open.
Status CheckLast(uint32_t num_ranks, const char* said) {
  std::vector<uint32_t> ranks(num_ranks - 1);
  std::iota(ranks.begin(), ranks.end(), 0);
  return CheckQueues("cuda:0 GPU-1", ranks, num_ranks - 1, said);
}

TEST(CheckQueues, EachRankNeedsTwoOfThem) {
  for (const char* said : {"1", "8", "32", "x", static_cast<const char*>(nullptr)}) {
    EXPECT_TRUE(CheckLast(1, said).ok()) << "one rank waits for nobody of its process";
  }
  const struct {
    const char* said;
    uint32_t most;
  } kCases[] = {{"1", 1},   {"2", 1},     {"3", 1}, {"4", 2},  {"8", 4}, {nullptr, 4}, {"32", 16},
                {"64", 16}, {"1000", 16}, {"0", 1}, {"-5", 1}, {"", 1},  {"all", 1},   {"32x", 1}};
  for (const auto& one : kCases) {
    const std::string what = one.said == nullptr ? "unset" : one.said;
    EXPECT_TRUE(CheckLast(one.most, one.said).ok()) << what;
    EXPECT_EQ(CheckLast(one.most + 1, one.said).code, Code::kFailedPrecondition) << what;
  }
}

TEST(CheckQueues, ARankThatIsJoinedAgainIsNoFurtherOne) {
  EXPECT_TRUE(CheckQueues("cuda:0", {3, 3}, 3, "1").ok());
}

TEST(CheckQueues, WhoIsRefusedHearsWhoIsThereAndWhatToSet) {
  EXPECT_THAT(CheckLast(2, "1").message,
              AllOf(HasSubstr("ranks=0,1 of this process are on one GPU, cuda:0 GPU-1"),
                    HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS: got 1, expected at least 4"),
                    HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=32, which CUDA reads when it begins")));
  EXPECT_THAT(CheckLast(5, nullptr).message,
              HasSubstr("got nothing (CUDA's default is 8), expected at least 10"));
  EXPECT_THAT(CheckLast(17, "32").message,
              AllOf(HasSubstr("got 17, expected at most 16"), HasSubstr("several processes")));
}

class TwoRanks : public ::testing::Test {
 protected:
  TwoRanks() {
    if (const char* said = getenv(kQueuesSetting)) before_ = said;
    setenv(kQueuesSetting, "1", 1);
  }
  ~TwoRanks() override {
    if (before_.empty()) {
      unsetenv(kQueuesSetting);
    } else {
      setenv(kQueuesSetting, before_.c_str(), 1);
    }
  }
  std::string before_;
};

TEST_F(TwoRanks, OnOneQueueAreRefusedAsTheSecondOneOpens) {
  StreamNode node(Executor::kWorker);
  const std::shared_ptr<StreamGroup> first = node.Attach(0);
  std::shared_ptr<StreamGroup> second;
  const Status refused = node.TryAttach(1, &second);
  EXPECT_EQ(refused.code, Code::kFailedPrecondition);
  EXPECT_THAT(refused.message, AllOf(HasSubstr("rank=1 phase=open: ranks=0,1 of this process"),
                                     HasSubstr("cuda:0 GPU-01010101-0101-0101-0101-010101010101")));
  // One behind the other they may.
  first->Close();
  EXPECT_TRUE(node.TryAttach(1, &second).ok());
  second->Close();
}

// What the ranks would meet.
TEST(FakeQueues, WhatWaitsHoldsUpWhatIsBehindItInAnotherStreamOfItsQueue) {
  for (const int connections : {1, 2}) {
    cuda::FakeDriver driver({.connections = connections});
    const cuda::DriverTable& t = driver.table();
    cuda::Context context = nullptr;
    cuda::Stream streams[2] = {};
    ASSERT_EQ(t.init(0), cuda::kSuccess);
    ASSERT_EQ(t.primary_context_retain(&context, 0), cuda::kSuccess);
    ASSERT_EQ(t.context_set_current(context), cuda::kSuccess);
    for (cuda::Stream& stream : streams) ASSERT_EQ(t.stream_create(&stream, 1), cuda::kSuccess);
    uint32_t words[2] = {};
    const auto put = [&](int stream, int operation, uint32_t* word) {
      cuda::BatchedOperation one = {};
      one.value = {operation, reinterpret_cast<cuda::DevicePointer>(word), 1,
                   operation == cuda::kWaitValue32 ? cuda::kWaitEqual : cuda::kWriteDefault, 0};
      EXPECT_EQ(t.stream_batch(streams[stream], 1, &one, 0), cuda::kSuccess);
    };
    put(0, cuda::kWaitValue32, &words[0]);
    put(1, cuda::kWriteValue32, &words[0]);
    driver.RunStreams();
    EXPECT_EQ(t.stream_query(streams[0]), connections == 1 ? cuda::kNotReady : cuda::kSuccess);
    words[0] = 1;
    EXPECT_EQ(driver.RunStreams(), 0);
    for (cuda::Stream stream : streams) t.stream_destroy(stream);
    t.primary_context_release(0);
  }
}

}  // namespace
}  // namespace epd::client
