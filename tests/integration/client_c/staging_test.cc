// Goal: staging is shared and bounded: groups that run in turn use the memory of one, what does not
// fit is RESOURCE_EXHAUSTED on every rank, and the next call that fits works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "daemon/rpc/node_api/memory_plan.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/slots_view.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/read_trap.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/client_c/harness/told.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string RunOnce(JoinedRank& joined, Link&) { return joined.rank->RunAndCompare(joined.data); }

// Bytes of the worker's staging arenas that are made of pages.
uint64_t CommittedStaging(pid_t worker) {
  uint64_t bytes = 0;
  const std::string folder = "/proc/" + std::to_string(worker) + "/fd";
  std::vector<ino_t> seen;  // Each arena has two descriptors.
  for (const auto& fd : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(fd.path(), gone);
    struct stat stat = {};
    if (target.find("epd-staging") == std::string::npos) continue;
    if (::stat(fd.path().c_str(), &stat) != 0) continue;
    if (std::find(seen.begin(), seen.end(), stat.st_ino) != seen.end()) continue;
    seen.push_back(stat.st_ino);
    bytes += static_cast<uint64_t>(stat.st_blocks) * 512;
  }
  return bytes;
}

// This process's op slots, as the library mapped them; nothing if they are not found.
std::optional<shm::SlotsView> MappedSlots() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx rw-s", &begin, &end) != 2) continue;
    if (line.find("epd-slots") == std::string::npos) continue;
    shm::SlotsView view;
    void* const segment = reinterpret_cast<void*>(begin);
    if (shm::SlotsView::Open(segment, end - begin, shm::kReadVersions, &view).ok()) return view;
  }
  return std::nullopt;
}

// The operations, each after the regions of the one before are back: the answer to its last use
// says so. Without that, how many overlap would be chance.
std::string RunOneByOne(ClientRank& rank, const RankData& data) {
  const std::optional<shm::SlotsView> slots = MappedSlots();
  if (!slots.has_value()) return "the op slots are mapped nowhere";
  const auto quiet = [&] {
    bool all = true;
    slots->ForEachUsedSlot([&](uint32_t i) { all &= shm::Ready(slots->word(i).load()) == 0; });
    return all;
  };
  const std::function<Result()> operations[] = {
      [&] { return rank.Prepare(data); }, [&] { return rank.Dispatch(data); },
      [&] { return rank.Combine(data); }, [&] { return rank.DispatchBackward(data); },
      [&] { return rank.CombineBackward(data); }};
  for (const auto& operation : operations) {
    if (const Result r = operation(); !r.ok()) return r.message;
    if (!Eventually(20, quiet)) return "a region did not come back";
  }
  return rank.recv_tokens == data.recv_tokens ? "" : "the rows are wrong";
}

class StagingTest : public ::testing::TestWithParam<bool> {};

TEST_P(StagingTest, SixtyFourGroupsThatRunInTurnUseTheStagingOfOne) {
  RunningDaemon daemon;
  constexpr int kGroups = 64;
  const ExchangeCase c{.num_ranks = 2, .hidden = 256, .worker_executor = GetParam()};
  const auto body = [&](JoinedRank& joined, Link& link) -> std::string {
    std::vector<std::unique_ptr<ClientRank>> groups;
    for (int i = 0; i < kGroups; ++i) {
      groups.push_back(std::make_unique<ClientRank>(joined.client, c, joined.rank->rank()));
      const JoinOptions options{.group = "layer" + std::to_string(i)};
      if (Result r = groups.back()->Join(options); !r.ok()) return r.message;
    }
    if (std::string p = RunOneByOne(*groups[0], joined.data); !p.empty()) return p;
    link.Say("one");
    link.Hear();
    for (const auto& group : groups) {
      if (std::string p = RunOneByOne(*group, joined.data); !p.empty()) return p;
    }
    link.Say("all");
    link.Hear();
    return "";
  };
  auto ranks = StartRanks(daemon.socket_path(), c, body);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "one");
  const uint64_t one = CommittedStaging(daemon.worker_pid());
  ASSERT_GT(one, 0u);
  for (const auto& rank : ranks) rank->link().Say("go");
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "all");
  EXPECT_LE(CommittedStaging(daemon.worker_pid()), one + one / 10);
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(StagingTest, WhatIsUsedIsWithinThePlannedTotalAndNotFarBelowIt) {
  RunningDaemon daemon;
  constexpr uint64_t kPool = uint64_t{256} << 20;  // RunningDaemon's.
  const ExchangeCase c{.num_ranks = 4,
                       .num_experts = 8,
                       .hidden = 2048,
                       .worker_executor = GetParam(),
                       .num_tokens = {128, 128, 128, 128}};
  GroupShape shape;
  shape.num_ranks = c.num_ranks;
  shape.num_experts = c.num_experts;
  shape.top_k = c.top_k;
  shape.max_tokens_per_rank = c.max_tokens();
  shape.recv_capacity_per_rank = c.recv_capacity();
  shape.hidden = c.hidden;
  shape.element_bytes = 4;
  shape.worker_executor = c.worker_executor;
  absl::StatusOr<v1::PlanMemoryResponse> plan = PlanGroupMemory(shape, kPool);
  ASSERT_TRUE(plan.ok()) << plan.status();
  JudgePlan(c.num_ranks, kPool, 0, *plan);
  const auto body = [&](JoinedRank& joined, Link& link) -> std::string {
    for (int step = 0; step < 20; ++step) {
      if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    }
    link.Say("done");
    link.Hear();
    return "";
  };
  auto ranks = StartRanks(daemon.socket_path(), c, body);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "done");
  const uint64_t used = CommittedStaging(daemon.worker_pid());
  EXPECT_LE(used, plan->total_bytes_per_node());
  // The plan is for the worst routing, and for operations of which two overlap; here none may have.
  EXPECT_GE(used, plan->total_bytes_per_node() / 5);
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(StagingTest, AnOperationLargerThanThePoolIsRefusedOnEveryRankAndTheNextCallWorks) {
  RunningDaemon daemon({"--staging_bytes=1MiB"});
  const ExchangeCase large{
      .num_ranks = 2, .hidden = 1 << 16, .worker_executor = GetParam(), .seed = 5};
  const ExchangeCase small{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks =
      StartRanks(daemon.socket_path(), large, [&](JoinedRank& joined, Link&) -> std::string {
        if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
        const Result refused = joined.rank->Dispatch(joined.data);
        for (const uint8_t byte : joined.rank->recv_tokens) {
          if (byte != 0) return "rows are not zero";
        }
        if (Result r = joined.rank->Prepare(joined.data); !r.ok())
          return "same group: " + r.message;
        ClientRank next(joined.client, small, joined.rank->rank());
        if (Result r = next.Join({.group = "small"}); !r.ok()) return r.message;
        const RankData data = MakeExchange(small)[joined.rank->rank()];
        if (std::string p = next.RunAndCompare(data); !p.empty()) return "small group: " + p;
        return refused.message;
      });
  EXPECT_THAT(Told("an operation needs more staging than there is", "all ranks", FinishAll(ranks)),
              Each(AllOf(StartsWith("[epd:RESOURCE_EXHAUSTED] group=test"),
                         HasSubstr("exceed an arena of 1048576 bytes; start epd with a larger"))));
}

// Group "holder" is stopped where it holds most of the pool; "waiter" gets none in time.
TEST_P(StagingTest, WhoGetsNoStagingBeforeTheDeadlineIsToldOnEveryRankAndLaterGetsIt) {
  RunningDaemon daemon({"--staging_bytes=1MiB"});
  // Any two of its calls do not fit together.
  const ExchangeCase c{.num_ranks = 1,
                       .num_experts = 2,
                       .top_k = 1,
                       .hidden = 4096,
                       .worker_executor = true,
                       .num_tokens = {20}};
  RankProcess holder([&](Link& link) -> std::string {
    JoinedRank joined(daemon.socket_path(), c, 0, {.group = "holder"});
    if (!joined.problem.empty()) return joined.problem;
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    if (!TrapReads(joined.data.tokens, link)) return "no whole page to trap";
    return "went through the trap: " + joined.rank->RunAndCompare(joined.data);
  });
  ASSERT_EQ(holder.link().Hear(), kTrapped);
  RankProcess waiter([&](Link& link) -> std::string {
    JoinedRank joined(daemon.socket_path(), c, 0, {.group = "waiter", .undecided_ms = 300});
    if (!joined.problem.empty()) return joined.problem;
    if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return "prepare: " + r.message;
    link.Say(joined.rank->Dispatch(joined.data).message);
    link.Hear();
    return joined.rank->RunAndCompare(joined.data);
  });
  EXPECT_THAT(Told("others hold the staging until the deadline", "all ranks that wait for it",
                   {waiter.link().Hear()})[0],
              AllOf(StartsWith("[epd:RESOURCE_EXHAUSTED] group=waiter"), HasSubstr("staging")));
  holder.Kill();
  waiter.link().Say("go");
  EXPECT_EQ(waiter.Finish(), "") << "the dead one's region was freed";
}

TEST_P(StagingTest, AWorkerThatMayMakeNoMemoryRefusesTheGroupAndTheNextOneWorks) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "no process under ThreadSanitizer, such as the one that makes pages for the "
                  "worker, starts where it may write no file";
#endif
  RunningDaemon daemon;
  const pid_t worker = daemon.worker_pid();
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  rlimit before = {};
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, nullptr, &before), 0);
  const rlimit little = {4096, before.rlim_max};
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &little, nullptr), 0);
  auto refused = StartRanks(daemon.socket_path(), c, RunOnce);
  EXPECT_THAT(Told("the worker may make no memory", "all ranks", FinishAll(refused)),
              Each(AllOf(StartsWith("[epd:RESOURCE_EXHAUSTED]"), HasSubstr("staging arena"))));
  EXPECT_EQ(daemon.worker_pid(), worker) << "the limit is an error, not the end of the worker";
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &before, nullptr), 0);
  auto next = StartRanks(daemon.socket_path(), c, RunOnce);
  EXPECT_THAT(FinishAll(next), Each(""));
  EXPECT_EQ(daemon.worker_pid(), worker);
}

INSTANTIATE_TEST_SUITE_P(Executors, StagingTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
