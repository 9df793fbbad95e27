// Goal: wherever in a call a rank's memory runs out, its peer is told so or goes on, no slot and no rows of the call are used
// again too early, and later calls of the same ranks are right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/epd/v1/code.h"
#include "tests/fakes/failing_memory.h"
#include "tests/integration/client_c/harness/client_rank.h"
#include "tests/integration/client_c/harness/exchange_case.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

constexpr size_t kRanks = 2;
constexpr int64_t kDeadlineMs = 300;

// Two ranks in this process, each with a session of its own.
class OutOfMemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  OutOfMemoryTest() : data_(MakeExchange(Case())) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      clients_.emplace_back();
      EXPECT_TRUE(Connect(daemon_.socket_path(), &clients_.back()).ok());
      ranks_.push_back(std::make_unique<ClientRank>(clients_.back(), Case(), rank));
    }
    const JoinOptions options = {.absent_ms = kDeadlineMs, .undecided_ms = kDeadlineMs};
    OnBoth([&](uint32_t rank) { EXPECT_TRUE(ranks_[rank]->Join(options).ok()); });
  }
  ~OutOfMemoryTest() override {
    for (auto& rank : ranks_) EXPECT_TRUE(rank->Leave().ok()) << "a call is still in flight";
    ranks_.clear();
    for (epd_client* client : clients_) epd_disconnect(client);
  }
  static ExchangeCase Case() {
    return {.num_ranks = kRanks, .num_experts = 4, .worker_executor = GetParam()};
  }
  template <typename Body>
  static void OnBoth(const Body& body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
  }
  void RunBoth(const std::string& prefix) {
    OnBoth([&](uint32_t rank) {
      EXPECT_EQ(ranks_[rank]->RunAndCompare(data_[rank], prefix), "") << "rank " << rank;
    });
  }
  // Rank 0's dispatch, of which allocation `count` fails. Nothing: there are not as many.
  std::optional<Result> DispatchWith(int64_t count, const std::string& name) {
    ranks_[0]->on_poisoned = [count](const Bytes&) { t_allocations_left = count; };
    Result result;
    try {
      result = ranks_[0]->Dispatch(data_[0], name);
    } catch (const std::bad_alloc&) {  // Of the test's own.
      result = {static_cast<int>(Code::kResourceExhausted), "out of memory"};
    }
    ranks_[0]->on_poisoned = nullptr;
    const bool failed = t_allocations_left < 0;
    t_allocations_left = -1;
    return failed ? std::optional<Result>(result) : std::nullopt;
  }

  RunningDaemon daemon_;
  std::vector<RankData> data_;
  std::vector<epd_client*> clients_;
  std::vector<std::unique_ptr<ClientRank>> ranks_;
};

TEST_P(OutOfMemoryTest, ACallWhoseMemoryRunsOutLeavesNothingBehind) {
  RunBoth("");
  // The first call of a name goes through the worker, later ones from rank to rank.
  for (const int num_before : {0, 2}) {
    bool has_failed = true;
    int num_ended_well = 0;
    int64_t count = 0;
    for (; has_failed; ++count) {
      const std::string name = std::to_string(num_before) + "/" + std::to_string(count);
      SCOPED_TRACE(name);
      for (int i = 0; i < num_before; ++i) {
        OnBoth([&](uint32_t rank) {
          const Result r = ranks_[rank]->Dispatch(data_[rank], name);
          EXPECT_TRUE(r.ok()) << r.message;
        });
      }
      OnBoth([&](uint32_t rank) {
        if (rank == 1) {
          const Result peer = ranks_[1]->Dispatch(data_[1], name);
          num_ended_well += peer.ok() ? 1 : 0;
          return;
        }
        const std::optional<Result> own = DispatchWith(count, name);
        has_failed = own.has_value();
        if (has_failed && !own->ok()) {
          EXPECT_EQ(own->code, static_cast<int>(Code::kResourceExhausted)) << own->message;
        }
      });
      RunBoth(name + "/");
    }
    EXPECT_GT(count, 1) << "no allocation has failed";
    EXPECT_GT(num_ended_well, 0);
  }
  for (int step = 0; step < 100; ++step) RunBoth("");
}

INSTANTIATE_TEST_SUITE_P(Executors, OutOfMemoryTest, ::testing::Bool());

}  // namespace
}  // namespace epd::testing
