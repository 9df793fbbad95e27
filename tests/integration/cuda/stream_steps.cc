#include "tests/integration/cuda/stream_steps.h"

#include "tests/integration/cuda/fake_gpu.h"

namespace epd::testing {
namespace {

std::string InStep(uint32_t number, const std::string& problem) {
  return problem.empty() ? "" : "step " + std::to_string(number) + ": " + problem;
}

}  // namespace

RankData DataOf(ExchangeCase c, uint32_t rank, uint32_t number) {
  c.seed = number + 1;
  return MakeExchange(c)[rank];
}

std::string RunSteps(StreamRank& streams, const ExchangeCase& c, uint32_t rank, uint32_t first,
                     uint32_t last) {
  std::string problem;
  for (uint32_t n = first; n < last && problem.empty(); ++n) {
    problem = InStep(n, streams.Step(DataOf(c, rank, n)));
  }
  return problem;
}

std::string ReplaySteps(StreamRank& streams, const ExchangeCase& c, uint32_t rank, uint32_t first,
                        uint32_t last) {
  std::string problem = streams.captured() ? "" : streams.Capture();
  for (uint32_t n = first; n < last && problem.empty(); ++n) {
    problem = InStep(n, streams.Replay(DataOf(c, rank, n)));
  }
  return problem;
}

std::string GoOn(StreamRank& streams, const StreamProgram& program, JoinedRank& joined, Link& link,
                 const Before& before) {
  if (!streams.AwaitFormationAbove(before.formation)) return "no new formation";
  link.Say("again");
  if (link.Hear() != "go") return "no word of the others";
  constexpr uint32_t kFirst = 1000;
  const std::string problem =
      program.steps(streams, program.c, joined.rank->rank(), kFirst, kFirst + 3);
  if (!problem.empty()) return "after: " + problem;
  return joined.rank->epoch() > before.epoch ? "" : "in the old epoch";
}

std::string RunUntilKilled(const StreamProgram& program, JoinedRank& joined, Link& link) {
  StreamRank streams(FakeGpu::Library(), joined, program.c);
  const uint32_t rank = joined.rank->rank();
  std::string failed = streams.problem;
  const Before before = {joined.rank->epoch(), streams.formation()};
  for (uint32_t n = 0; failed.empty(); ++n) {
    failed = program.steps(streams, program.c, rank, n, n + 1);
    if (n == 0) link.Say(failed.empty() ? "running" : failed);
  }
  const std::string problem = GoOn(streams, program, joined, link, before);
  return problem.empty() ? failed : problem + "; it had failed with " + failed;
}

}  // namespace epd::testing
