// Goal: with a real epd and worker, ranks in processes of their own get what plain loops give, for
// all five operations, in every dtype, with both executors, and at the edges (no tokens, no routes,
// one expert, drops).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/client_c/harness/told.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kSteps = 3;

std::string RunSteps(JoinedRank& joined, Link&) { return joined.RunAndLeave(kSteps); }

class ExchangeTest : public ::testing::TestWithParam<bool> {};

TEST_P(ExchangeTest, EveryRankGetsWhatPlainLoopsGive) {
  RunningDaemon daemon;
  for (ExchangeCase c : ExchangeCases()) {
    c.worker_executor = GetParam();
    SCOPED_TRACE(c.ToString());
    auto ranks = StartRanks(daemon.socket_path(), c, RunSteps);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
}

TEST_P(ExchangeTest, AnyExpertTableGivesWhatPlainLoopsGive) {
  RunningDaemon daemon;
  for (ExchangeCase c : ExpertTableCases()) {
    c.worker_executor = GetParam();
    SCOPED_TRACE(c.ToString());
    auto ranks = StartRanks(daemon.socket_path(), c, RunSteps);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
}

// Ranks 0 and 1 have tokens and no experts, ranks 2 to 4 experts and no tokens: programs that have
// nothing in common but the operations' names, where each gives a capacity, or tokens, of 0.
TEST_P(ExchangeTest, NamedOperationsJoinProgramsWithoutTokensAndProgramsWithoutCapacity) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 5,
                       .num_experts = 6,
                       .top_k = 3,
                       .hidden = 24,
                       .worker_executor = GetParam(),
                       .num_tokens = {8, 5, 0, 0, 0},
                       .expert_owner = {2, 4, 3, 2, 4, 4},
                       .capacities = {0, 0, 40, 40, 40}};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    for (int batch = 0; batch < 6; ++batch) {
      // Two micro-batches in flight have names of their own.
      const std::string prefix = "moe/" + std::to_string(batch % 2) + "/";
      if (std::string p = joined.rank->RunAndCompare(joined.data, prefix); !p.empty()) return p;
      // Attention ranks run calls of which the others know nothing: of a program of their own.
      if (joined.rank->rank() == 0) {
        uint8_t own_program[16] = {42};
        epd_begin_execution(joined.rank->group(), 0, own_program);
      }
    }
    return joined.rank->Leave().message;
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(ExchangeTest, OverflowWithoutDropIsAnErrorOnEveryRankAndLeavesTheGroupUsable) {
  RunningDaemon daemon;
  ExchangeCase c{.num_ranks = 2,
                 .capacity = 10,
                 .routing = Routing::kOneExpert,
                 .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
    if (joined.rank->total_recv != joined.data.total_recv) return "total_recv";
    const Result result = joined.rank->Dispatch(joined.data);
    if (result.code != 8) return "code " + std::to_string(result.code) + ": " + result.message;
    for (const uint8_t byte : joined.rank->recv_tokens) {
      if (byte != 0) return "rows are not zero";
    }
    RankData fewer = joined.data;
    std::fill(fewer.topk_idx.begin() + 4, fewer.topk_idx.end(), -1);
    if (Result r = joined.rank->Prepare(fewer); !r.ok()) return r.message;
    if (Result r = joined.rank->Dispatch(fewer); !r.ok()) return r.message;
    return result.message;
  });
  for (const std::string& report :
       Told("a rank would receive more rows than its capacity", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, HasSubstr("[epd:RESOURCE_EXHAUSTED]"));
    EXPECT_THAT(
        report,
        ContainsRegex("rank=0 host=[^ ]+ pid=[0-9]+ phase=announce would receive 32 slots, its "
                      "capacity is 10"));
  }
}

TEST_P(ExchangeTest, TwoThreadsRunNamedOperationsInOppositeOrderOnTwoRanks) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [&](JoinedRank& joined, Link&) -> std::string {
    ExchangeCase second = c;
    second.seed = 99;
    const RankData other = MakeExchange(second)[joined.rank->rank()];
    ClientRank also(joined.client, second, joined.rank->rank());
    also.Borrow(*joined.rank);
    const bool swap = joined.rank->rank() == 1;
    for (int i = 0; i < 20; ++i) {
      std::string first_problem;
      const auto run_a = [&] { return joined.rank->RunAndCompare(joined.data, "a/"); };
      const auto run_b = [&] { return also.RunAndCompare(other, "b/"); };
      std::thread first([&] { first_problem = swap ? run_b() : run_a(); });
      const std::string second_problem = swap ? run_a() : run_b();
      first.join();
      if (!first_problem.empty() || !second_problem.empty()) return first_problem + second_problem;
    }
    return "";
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(ExchangeTest, WhatWaitsForOtherRanksIsPendingAndEndsInAnotherThread) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    ClientRank& rank = *joined.rank;
    for (const int64_t wait_ns :
         {int64_t{0}, int64_t{200'000}, int64_t{20'000'000'000}, INT64_MAX}) {
      rank.wait_ns = wait_ns;
      rank.num_pending = rank.num_at_once = 0;
      for (int step = 0; step < 20; ++step) {
        // Each is late in turn.
        if (static_cast<int>(rank.rank()) == step % 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
        }
        if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return p;
      }
      const bool waited_enough = wait_ns > 1'000'000'000;
      if (waited_enough != (rank.num_pending == 0)) {
        return std::to_string(rank.num_pending) + " were pending";
      }
    }
    return "";
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

// One thread has two operations under way, and the other rank begins them in the other order.
TEST_P(ExchangeTest, PendingOperationsHoldUpNoOthers) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    ClientRank& rank = *joined.rank;
    if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return p;
    std::vector<std::vector<uint8_t>> plans(2, rank.plan);
    std::vector<int32_t> totals(2, -1);
    std::vector<std::vector<int32_t>> counts(2, rank.token_counts);
    const std::vector<int32_t> indices(joined.data.topk_idx.begin(), joined.data.topk_idx.end());
    for (int round = 0; round < 50; ++round) {
      epd_error error = {};
      error.struct_size = sizeof error;
      epd_pending* pending[2] = {};
      int code[2] = {};
      for (const size_t i : {rank.rank(), 1 - rank.rank()}) {
        epd_prepare_args args = {};
        args.struct_size = sizeof args;
        args.rank = rank.rank();
        args.key.struct_size = sizeof args.key;
        args.key.name = i == 0 ? "first" : "second";
        args.key.execution = EPD_EXECUTION_NEXT;
        args.topk_idx = indices.data();
        args.idx_bytes = 4;
        args.num_tokens = 8;
        args.top_k = 2;
        args.token_counts = counts[i].data();
        args.total_recv = &totals[i];
        args.handle_mem = plans[i].data();
        args.handle_mem_bytes = plans[i].size();
        const epd_try_args tried = {sizeof tried, EPD_OPERATION_PREPARE, &args, 10'000};
        code[i] = epd_try(rank.group(), &tried, &pending[i], &error);
      }
      for (const size_t i : {0, 1}) {
        if (pending[i] != nullptr) code[i] = epd_finish(pending[i], &error);
        if (code[i] != EPD_OK) return error.message;
        if (totals[i] != joined.data.total_recv) return "another total";
      }
    }
    return "";
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(ExchangeTest, WhatCannotBeTriedIsRefused) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 1, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    epd_error error = {};
    error.struct_size = sizeof error;
    epd_prepare_args args = {};
    args.struct_size = sizeof args;
    epd_pending* pending = nullptr;
    epd_group* const group = joined.rank->group();
    std::string said;
    const auto add = [&](int code) { said += std::to_string(code) + " " + error.message + "\n"; };
    epd_try_args tried = {sizeof tried, static_cast<epd_operation>(7), &args, 0};
    add(epd_try(group, &tried, &pending, &error));
    tried.operation = EPD_OPERATION_PREPARE;
    add(epd_try(group, &tried, nullptr, &error));
    add(epd_try(nullptr, &tried, &pending, &error));
    tried.args = nullptr;
    add(epd_try(group, &tried, &pending, &error));
    add(epd_finish(nullptr, &error));
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    return said;
  });
  EXPECT_THAT(FinishAll(ranks)[0],
              AllOf(HasSubstr("3 [epd:INVALID_ARGUMENT] operation: 7 is no epd_operation"),
                    HasSubstr("3 [epd:INVALID_ARGUMENT] args must not be NULL"),
                    HasSubstr("3 [epd:INVALID_ARGUMENT] pending must not be NULL"),
                    HasSubstr("3 [epd:INVALID_ARGUMENT] group must not be NULL")));
}

// Prepares under a program's key instead of a name.
Result PrepareNumbered(JoinedRank& joined, uint64_t execution, uint32_t ordinal) {
  std::vector<int32_t> indices(joined.data.topk_idx.begin(), joined.data.topk_idx.end());
  ClientRank& rank = *joined.rank;
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.rank = rank.rank();
  args.key.struct_size = sizeof args.key;
  std::fill(std::begin(args.key.program), std::end(args.key.program), uint8_t{7});
  args.key.execution = execution;
  args.key.ordinal = ordinal;
  args.topk_idx = indices.data();
  args.idx_bytes = 4;
  args.num_tokens = 8;
  args.top_k = 2;
  args.token_counts = rank.token_counts.data();
  args.total_recv = &rank.total_recv;
  args.handle_mem = rank.plan.data();
  args.handle_mem_bytes = rank.plan.size();
  epd_error error = {};
  error.struct_size = sizeof error;
  const int code = epd_prepare(rank.group(), &args, &error);
  return {code, error.message};
}

TEST_P(ExchangeTest, CallsOfAProgramAreMatchedByExecutionAndOrdinal) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    uint8_t program[16];
    std::fill(std::begin(program), std::end(program), uint8_t{7});
    for (uint64_t expected = 0; expected < 5; ++expected) {
      const uint64_t execution =
          epd_begin_execution(joined.rank->group(), joined.rank->rank(), program);
      if (execution != expected) return "execution " + std::to_string(execution);
      for (const uint32_t ordinal : {0u, 3u}) {
        if (Result r = PrepareNumbered(joined, execution, ordinal); !r.ok()) return r.message;
        if (joined.rank->total_recv != joined.data.total_recv) return "total_recv";
      }
    }
    const Result unnumbered = PrepareNumbered(joined, EPD_EXECUTION_NEXT, 0);
    return unnumbered.code == 3 ? "" : "a key that could mean two things was taken";
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(ExchangeTest, CallsThatDoNotAgreeAreNamedOnEveryRankAndEndNothing) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    const Result result = joined.rank->rank() == 0 ? joined.rank->Dispatch(joined.data, "same")
                                                   : joined.rank->Combine(joined.data, "same");
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return "then: " + p;
    return result.message;
  });
  for (const std::string& report :
       Told("ranks call different operations by one name", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:INVALID_ARGUMENT] group=test"));
    EXPECT_THAT(report, HasSubstr("dispatch"));
    EXPECT_THAT(report, HasSubstr("combine"));
  }
}

TEST_P(ExchangeTest, RowsThatRanksDivideDifferentlyAreAnErrorOnEveryRank) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    ClientRank& rank = *joined.rank;
    const uint32_t first = rank.rank() == 0 ? 12 : 4;
    rank.set_arrays({first, 16 - first});
    const Result divided = rank.Dispatch(joined.data, "divided");
    for (const uint8_t byte : rank.recv_tokens) {
      if (byte != 0) return "a failed dispatch left rows";
    }
    rank.set_arrays({12, 4});
    if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return "then: " + p;
    return divided.message;
  });
  for (const std::string& report :
       Told("ranks divide their rows differently", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:INVALID_ARGUMENT] group=test"));
    EXPECT_THAT(report, HasSubstr("dtype"));
  }
}

TEST_P(ExchangeTest, ArraysThatCannotTravelAreNamed) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 1, .hidden = 65, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) -> std::string {
    ClientRank& rank = *joined.rank;
    if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return p;
    std::string said;
    const std::vector<std::vector<uint32_t>> wrong = {{65, 0}, std::vector<uint32_t>(65, 1)};
    for (const std::vector<uint32_t>& arrays : wrong) {
      rank.set_arrays(arrays);
      said += rank.Dispatch(joined.data, "wrong").message + '\n';
    }
    rank.set_arrays({});
    if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return "then: " + p;
    return said;
  });
  const std::string said = FinishAll(ranks)[0];
  EXPECT_THAT(said, HasSubstr("more[0].hidden: got 0, expected 1 or more"));
  EXPECT_THAT(said, HasSubstr("num_more: got 64 arrays, at most 63"));
}

INSTANTIATE_TEST_SUITE_P(Executors, ExchangeTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
