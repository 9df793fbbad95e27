// Goal: a node without libnccl exchanges through the CPU backend all the same, and its doctor says
// what is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string OutputOf(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char chunk[4096];
  while (pipe != nullptr) {
    const size_t got = std::fread(chunk, 1, sizeof chunk, pipe.get());
    if (got == 0) break;
    text.append(chunk, got);
  }
  return text;
}

TEST(WithoutNcclTest, AnExchangeWorksAndTheDoctorNamesTheLibrary) {
  RunningDaemon daemon({"--nccl_library=/none"});
  for (const bool worker_executor : {false, true}) {
    const ExchangeCase c{.num_ranks = 2, .worker_executor = worker_executor};
    auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link&) {
      return joined.rank->RunAndCompare(joined.data);
    });
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  const std::string said =
      OutputOf("timeout 20 client/cli/epctl --socket=" + daemon.socket_path() + " doctor 2>&1");
  EXPECT_THAT(said, HasSubstr("libnccl"));
  EXPECT_THAT(said, HasSubstr("/none"));
  EXPECT_THAT(said, HasSubstr("cannot form; all others work all the same"));
}

}  // namespace
}  // namespace epd::testing
