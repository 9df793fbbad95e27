// Steps of a program in a rank's stream: what goes in, in which order, and what is to come out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/integration/client_c/harness/exchange_case.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/cuda/stream_rank.h"

namespace epd::testing {

// What every rank gets in step `number`: other rows and routes in each.
RankData DataOf(ExchangeCase c, uint32_t rank, uint32_t number);

// Every step of a program, which is put anew each time, or what went wrong.
std::string RunSteps(StreamRank& streams, const ExchangeCase& c, uint32_t rank, uint32_t first,
                     uint32_t last);
// The same of one that is captured, and replayed in each step.
std::string ReplaySteps(StreamRank& streams, const ExchangeCase& c, uint32_t rank, uint32_t first,
                        uint32_t last);

struct Before {
  uint64_t epoch;
  uint64_t formation;
};

using SomeSteps = std::function<std::string(StreamRank&, const ExchangeCase&, uint32_t rank,
                                            uint32_t first, uint32_t last)>;

struct StreamProgram {
  ExchangeCase c;
  SomeSteps steps;
};

// Once all ranks have the new formation: a few steps in it.
std::string GoOn(StreamRank& streams, const StreamProgram& program, JoinedRank& joined, Link& link,
                 const Before& before);

// Steps until one fails, and then in the new epoch. The failure.
std::string RunUntilKilled(const StreamProgram& program, JoinedRank& joined, Link& link);

}  // namespace epd::testing
