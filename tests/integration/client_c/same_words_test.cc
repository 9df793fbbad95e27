// Goal: of one error all ranks hear the same words: which side is "expected", and who is named, does not depend on who asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::HasSubstr;

// What one rank does otherwise than all others, and what everybody must hear.
struct Mistake {
  const char* says;
  Result (*wrong)(ClientRank& rank, RankData data, const ExchangeCase& c);
  Result (*right)(ClientRank& rank, const RankData& data);
};

Result Dispatches(ClientRank& rank, const RankData& data) { return rank.Dispatch(data, "same"); }
Result Prepares(ClientRank& rank, const RankData& data) { return rank.Prepare(data, "same"); }

// A call of the same rank for a case of other sizes.
template <typename Call>
Result As(const ExchangeCase& other, ClientRank& rank, Call call) {
  ClientRank also(nullptr, other, rank.rank());
  also.Borrow(rank);
  also.plan = rank.plan;
  return call(also, MakeExchange(other)[rank.rank()]);
}

const Mistake kMistakes[] = {
    {"do not agree in kind",
     [](ClientRank& rank, RankData data, const ExchangeCase&) {
       return rank.Combine(data, "same");
     },
     Dispatches},
    {"do not agree in alignment",
     [](ClientRank& rank, RankData, const ExchangeCase& c) {
       ExchangeCase other = c;
       other.alignment = 4;
       return As(other, rank, Prepares);
     },
     Prepares},
    {"top_k",
     [](ClientRank& rank, RankData, const ExchangeCase& c) {
       ExchangeCase other = c;
       other.top_k = 1;
       return As(other, rank, Prepares);
     },
     Prepares},
    {"dtype",
     [](ClientRank& rank, RankData, const ExchangeCase& c) {
       ExchangeCase other = c;
       other.dtype = EPD_DTYPE_BFLOAT16;
       return As(other, rank, Dispatches);
     },
     Dispatches},
    {"must be below",
     [](ClientRank& rank, RankData data, const ExchangeCase& c) {
       data.topk_idx[3] = c.num_experts;
       return rank.Prepare(data, "same");
     },
     Prepares},
    {"handle_mem",
     [](ClientRank& rank, RankData data, const ExchangeCase&) {
       rank.plan[200] ^= 1;
       const Result result = rank.Dispatch(data, "same");
       rank.plan[200] ^= 1;
       return result;
     },
     Dispatches},
    {"its capacity is 1",
     [](ClientRank& rank, RankData, const ExchangeCase& c) {
       ExchangeCase other = c;
       other.capacity = 1;
       return As(other, rank, Dispatches);
     },
     Dispatches},
};

std::string MakeMistakes(JoinedRank& joined, const ExchangeCase& c, uint32_t odd) {
  std::string heard;
  if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
  for (const Mistake& mistake : kMistakes) {
    const Result result = joined.rank->rank() == odd ? mistake.wrong(*joined.rank, joined.data, c)
                                                     : mistake.right(*joined.rank, joined.data);
    heard += result.message + "\t";
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty())
      return std::string(mistake.says) + ", then: " + p;
  }
  return heard;
}

// Without the rank that was asked.
std::vector<std::string> WordsOf(const std::string& report) {
  static const std::regex kOwn("^(\\[epd:[A-Z_]+\\] group=test epoch=[0-9]+) rank=[0-9]+ ");
  std::vector<std::string> words;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line, '\t');)
    words.push_back(std::regex_replace(line, kOwn, "$1 "));
  return words;
}

class SameWordsTest : public ::testing::TestWithParam<bool> {};

TEST_P(SameWordsTest, OfEachMistakeOnAllRanksWhoeverMakesIt) {
  RunningDaemon daemon;
  for (const uint32_t num_ranks : {2, 3}) {
    for (uint32_t odd = 0; odd < num_ranks; ++odd) {
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, of which " + std::to_string(odd) + " errs");
      const ExchangeCase c{.num_ranks = num_ranks,
                           .num_experts = 2 * num_ranks,
                           .capacity = 128,
                           .worker_executor = GetParam()};
      auto ranks = StartRanks(daemon.socket_path(), c, [&](JoinedRank& joined, Link&) {
        return MakeMistakes(joined, c, odd);
      });
      const std::vector<std::string> reports = FinishAll(ranks);
      const std::vector<std::string> first = WordsOf(reports[0]);
      ASSERT_EQ(first.size(), std::size(kMistakes)) << reports[0];
      for (size_t i = 0; i < first.size(); ++i) EXPECT_THAT(first[i], HasSubstr(kMistakes[i].says));
      for (const std::string& report : reports) EXPECT_EQ(WordsOf(report), first);
    }
  }
}

// Whoever comes first is "expected", for both.
TEST_P(SameWordsTest, OfSizesThatDifferAtTheJoinWhoeverComesFirst) {
  RunningDaemon daemon;
  for (uint32_t odd = 0; odd < 6; ++odd) {
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(std::make_unique<RankProcess>([&](Link&) {
        ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
        if (rank == odd % 2) c.hidden = 32;
        return JoinedRank(daemon.socket_path(), c, rank).problem;
      }));
    }
    const std::vector<std::string> reports = FinishAll(ranks);
    EXPECT_THAT(reports[0], HasSubstr("specs differ: hidden: got "));
    EXPECT_EQ(reports[1], reports[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Executors, SameWordsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
