// Goal: groups of as many ranks as a node serves get what plain loops give, and lose a rank by name, as small ones do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/epd/v1/limits.h"
#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSteps = 3;

// Small: each rank works out what every rank is to get.
ExchangeCase CaseOf(uint32_t num_ranks) {
  return {.num_ranks = num_ranks,
          .num_experts = num_ranks,
          .top_k = 2,
          .hidden = 8,
          .capacity = 64,
          .num_tokens = std::vector<uint32_t>(num_ranks, 2)};
}

// AddressSanitizer writes a byte of its own for each 8 of address space that is given back, so little of it.
constexpr char kStaging[] = "--staging_bytes=64MiB";

// The second has more descriptors than one datagram takes, also from epd to a client, and no eager buffers.
class ManyRanksTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ManyRanksTest, EveryRankGetsWhatPlainLoopsGive) {
  RunningDaemon daemon({kStaging});
  auto ranks = StartRanks(daemon.socket_path(), CaseOf(GetParam()),
                          [](JoinedRank& joined, Link&) { return joined.RunAndLeave(kSteps); });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(ManyRanksTest, AKilledRankHasOneNameOnAllOthers) {
  RunningDaemon daemon({kStaging});
  constexpr size_t kKilled = 7;
  auto ranks =
      StartRanks(daemon.socket_path(), CaseOf(GetParam()), [](JoinedRank& joined, Link& link) {
        std::string problem = joined.rank->RunAndCompare(joined.data);
        link.Say(problem.empty() ? "ran" : problem);
        while (problem.empty()) problem = joined.rank->RunAndCompare(joined.data);
        return problem;
      });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  ranks[kKilled]->Kill();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kKilled) continue;
    EXPECT_THAT(ranks[i]->Finish(),
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank=" + std::to_string(kKilled) + " ")))
        << "rank " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ManyRanksTest, ::testing::Values(64, limits::kDatagramFds + 30),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace epd::testing
