// Goal: sessions come and go for as long as a node is up, and leave no descriptor behind, neither
// in their own process nor in epd nor in the worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::Each;

constexpr int kRounds = 20;

// What the open descriptors are, each kind with its number, for people.
std::string Listed(const std::string& process) {
  std::map<std::string, int> kinds;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(fd.path(), gone);
    ++kinds[target.substr(0, target.find('['))];
  }
  std::string text;
  for (const auto& [kind, count] : kinds) text += kind + " " + std::to_string(count) + "; ";
  return text;
}

size_t OpenDescriptors(const std::string& process) {
  const std::filesystem::directory_iterator folder("/proc/" + process + "/fd");
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

// Connects, joins, exchanges; leaves or not; disconnects.
std::string OneSession(const std::string& socket, const ExchangeCase& c, uint32_t rank,
                       bool leave) {
  JoinedRank joined(socket, c, rank);
  if (!joined.problem.empty()) return joined.problem;
  if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
  return leave ? joined.rank->Leave().message : "";
}

class DescriptorsTest : public ::testing::TestWithParam<bool> {};

TEST_P(DescriptorsTest, ManySessionsLeaveNoneBehindAnywhere) {
  // NCCL keeps a listening socket for every id that it made until that id's ranks have connected,
  // which nobody here does.
  RunningDaemon daemon({"--nccl_library=/none"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (const uint32_t rank : {0u, 1u}) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link& link) -> std::string {
      // Once for what the C library opens for good.
      if (std::string p = OneSession(daemon.socket_path(), c, rank, true); !p.empty()) return p;
      const size_t before = OpenDescriptors("self");
      link.Say("once");
      link.Hear();
      for (int round = 0; round < kRounds; ++round) {
        const std::string p = OneSession(daemon.socket_path(), c, rank, round % 2 == 0);
        if (!p.empty()) return "round " + std::to_string(round) + ": " + p;
      }
      const size_t after = OpenDescriptors("self");
      if (after == before) return "";
      return std::to_string(before) + " descriptors became " + std::to_string(after);
    }));
  }
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "once");
  const std::string epd = std::to_string(daemon.pid());
  const std::string worker = std::to_string(daemon.worker_pid());
  // The daemon closes what a session had when it sees the end of it, which is soon and not at once.
  const auto settled = [&](const std::string& process, size_t expected) {
    return Eventually(5, [&] { return OpenDescriptors(process) <= expected; });
  };
  // Two sessions' worth may still be open here; they are gone once the count stands still.
  size_t epd_before = OpenDescriptors(epd);
  size_t worker_before = OpenDescriptors(worker);
  Eventually(1, [&] {
    epd_before = std::min(epd_before, OpenDescriptors(epd));
    worker_before = std::min(worker_before, OpenDescriptors(worker));
    return false;
  });
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_TRUE(settled(epd, epd_before)) << epd_before << " in epd became " << Listed(epd);
  EXPECT_TRUE(settled(worker, worker_before))
      << worker_before << " in the worker became " << Listed(worker);
}

INSTANTIATE_TEST_SUITE_P(Executors, DescriptorsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
