#include "tests/integration/cuda/on_cuda.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace epd::testing {
namespace {

constexpr absl::Duration kRecovers = absl::Minutes(1);

}  // namespace

JoinOptions OnOneOf(uint32_t num_devices, uint32_t rank) {
  JoinOptions options = kOnCuda;
  options.device = "cuda:" + std::to_string(rank % num_devices);
  return options;
}

std::string RunTwice(JoinedRank& joined, Link&) { return joined.RunAndLeave(2); }

std::string RunUntilTold(JoinedRank& joined, Link& link) {
  const uint64_t epoch = joined.rank->epoch();
  for (bool first = true; first || link.Hear(/*seconds=*/0.001).empty(); first = false) {
    const std::string problem = joined.rank->RunAndCompare(joined.data);
    if (problem.find("left") != std::string::npos) break;
    if (!problem.empty()) return problem;
    if (first) link.Say("ran");
  }
  return joined.rank->epoch() == epoch ? "" : "in another epoch";
}

std::function<std::string(JoinedRank&, Link&)> FailAndRecover(bool in_new_epoch) {
  return [in_new_epoch](JoinedRank& joined, Link& link) -> std::string {
    const uint64_t epoch = joined.rank->epoch();
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) {
      return "at first: " + p;
    }
    link.Say("ran");
    std::string failed;
    while (failed.empty()) failed = joined.rank->RunAndCompare(joined.data);
    std::string again = failed;
    for (const absl::Time until = absl::Now() + kRecovers; !again.empty() && absl::Now() < until;)
      again = joined.rank->RunAndCompare(joined.data);
    if (!again.empty()) return "never again: " + again;
    if (in_new_epoch && joined.rank->epoch() <= epoch) return "in the old epoch";
    return failed;
  };
}

}  // namespace epd::testing
