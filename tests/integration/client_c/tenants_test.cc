// Goal: two tenants of one group exchange side by side under the same names, share nothing but the
// group's ranks, communicator and budget, and neither notices that the other is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "client/c/attach_messages.h"
#include "client/c/attach_socket.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/read_trap.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Clock = std::chrono::steady_clock;
using Inodes = std::set<uint64_t>;

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

Inodes Common(const Inodes& a, const Inodes& b) {
  Inodes common;
  for (const uint64_t inode : a) {
    if (b.count(inode) > 0) common.insert(inode);
  }
  return common;
}

// The memfds that a process maps, without those that it had before it knew of epd.
Inodes MappedMemfds(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  Inodes inodes;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, permissions, offset, device;
    uint64_t inode = 0;
    words >> range >> permissions >> offset >> device >> inode;
    inodes.insert(inode);
  }
  return inodes;
}

// One rank that speaks the attach protocol itself and keeps every descriptor that it is sent.
class RawRank {
 public:
  std::string Attach(const std::string& path) {
    if (client::Status s = client::AttachSocket::Connect(path, Deadline(), &socket_); !s.ok())
      return s.message;
    const client::Attach attach = client::MakeAttach("raw");
    if (client::Status s = socket_.Send(client::EncodeClientMessage(attach)); !s.ok())
      return s.message;
    return Receive(2);
  }

  std::string AskToJoin(const std::string& tenant, uint32_t rank) {
    client::Join join;
    join.request_id = 1;
    join.spec.name = "shared";
    join.spec.tenant = tenant;
    join.spec.num_ranks = 2;
    join.spec.num_experts = 2;
    join.spec.max_tokens_per_rank = 8;
    join.spec.recv_capacity_per_rank = 16;
    join.spec.hidden = 16;
    join.spec.top_k = 2;
    join.spec.max_token_dtype = EPD_DTYPE_FLOAT32;
    join.ranks = {rank};
    return socket_.Send(client::EncodeClientMessage(join)).message;
  }

  // "" when so many descriptors came with the next message.
  std::string Receive(size_t num_fds) {
    client::AttachSocket::Datagram datagram;
    if (client::Status s = socket_.Receive(Deadline(), &datagram); !s.ok()) return s.message;
    if (datagram.fds.size() != num_fds)
      return "came with " + std::to_string(datagram.fds.size()) + " descriptors: " + datagram.bytes;
    for (client::UniqueFd& fd : datagram.fds) {
      struct stat stat = {};
      fstat(fd.get(), &stat);
      // All eventfds of a machine share one inode, which holds nobody's bytes.
      if (S_ISREG(stat.st_mode)) inodes_.insert(stat.st_ino);
      fds_.push_back(std::move(fd));
    }
    return "";
  }

  const Inodes& inodes() const { return inodes_; }

 private:
  static Clock::time_point Deadline() { return Clock::now() + std::chrono::seconds(20); }

  client::AttachSocket socket_;
  std::vector<client::UniqueFd> fds_;
  Inodes inodes_;
};

TEST(TenantDescriptorsTest, NoDescriptorThatOneIsSentIsAlsoSentToTheOther) {
  RunningDaemon daemon;
  RawRank ranks[2][2];  // [tenant][rank]
  for (int tenant : {0, 1}) {
    for (uint32_t rank : {0u, 1u}) {
      ASSERT_EQ(ranks[tenant][rank].Attach(daemon.socket_path()), "");
      ASSERT_EQ(ranks[tenant][rank].AskToJoin(tenant == 0 ? "a" : "b", rank), "");
    }
  }
  for (auto& tenant : ranks) {
    for (RawRank& rank : tenant) ASSERT_EQ(rank.Receive(2), "") << "its own arena and its peer's";
  }
  for (const RawRank& a : ranks[0]) {
    EXPECT_EQ(a.inodes().size(), 3u) << "slots and two arenas";
    for (const RawRank& b : ranks[1]) {
      EXPECT_EQ(Common(a.inodes(), b.inodes()), Inodes()) << "tenants a and b";
    }
  }
  for (const auto& tenant : ranks) {
    EXPECT_EQ(Common(tenant[0].inodes(), tenant[1].inodes()).size(), 2u)
        << "ranks of one tenant share its arenas: the comparison sees what is shared";
  }
}

class TenantsTest : public ::testing::TestWithParam<bool> {
 protected:
  // Rows of two pages, so that most of a buffer is whole pages.
  ExchangeCase Case(uint32_t seed) const {
    return {.num_ranks = 3,
            .num_experts = 6,
            .hidden = 2048,
            .worker_executor = GetParam(),
            .seed = seed};
  }
  static JoinOptions As(const std::string& tenant) {
    return {.group = "shared",
            .instance = "run-of-" + tenant,
            .tenant = tenant,
            .program = "program-" + tenant,
            .metadata = "what " + tenant + " does"};
  }
};

// Exchanges until rank 0 is told to end.
std::string RunUntilTold(JoinedRank& joined, Link& link) {
  for (int step = 0; step < 100'000; ++step) {
    if (step == 3) link.Say("running");
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) {
      // Ranks 1 and 2 follow rank 0's end of the load, whichever call they then are in.
      return joined.rank->rank() != 0 && p.find("rank=0") != std::string::npos ? "" : p;
    }
    if (joined.rank->rank() == 0 && link.Hear(0.001) == "end") return "";
  }
  return "the load was not ended";
}

TEST_P(TenantsTest, TheSameNamesOfTwoTenantsNeverMeet) {
  RunningDaemon daemon;
  auto a = StartRanks(daemon.socket_path(), Case(1), RunUntilTold, As("a"));
  auto b = StartRanks(daemon.socket_path(), Case(2), RunUntilTold, As("b"));
  for (auto* tenant : {&a, &b}) {
    for (const auto& rank : *tenant) ASSERT_EQ(rank->link().Hear(), "running");
  }
  for (const auto& in_a : a) {
    const Inodes mapped = MappedMemfds(in_a->pid());
    EXPECT_GE(mapped.size(), 4u) << "slots and three arenas";
    for (const auto& in_b : b) EXPECT_EQ(Common(mapped, MappedMemfds(in_b->pid())), Inodes());
  }
  EXPECT_GE(Common(MappedMemfds(a[0]->pid()), MappedMemfds(a[1]->pid())).size(), 3u);

  const std::string epctl = "timeout 20 client/cli/epctl --socket=" + daemon.socket_path() + " ";
  EXPECT_THAT(OutputOf(epctl + "ranks 2>&1"),
              AllOf(HasSubstr("TENANT"), HasSubstr("program-a"), HasSubstr("what b does")));
  EXPECT_THAT(OutputOf(epctl + "sessions 2>&1"),
              AllOf(HasSubstr("shared/a:2"), HasSubstr("shared/b:0")));
  EXPECT_THAT(OutputOf(epctl + "memory 2>&1"), AllOf(HasSubstr("arenas of group shared tenant=a"),
                                                     HasSubstr("shared tenant=b rank 2")));
  for (auto* tenant : {&a, &b}) (*tenant)[0]->link().Say("end");
  EXPECT_THAT(FinishAll(a), Each(""));
  EXPECT_THAT(FinishAll(b), Each(""));
}

// Rank 2 of tenant a stops while it holds a region: admitted, not published.
std::string HoldARegion(JoinedRank& joined, Link& link) {
  for (int step = 0;; ++step) {
    if (step == 3) {
      link.Say("running");
      if (joined.rank->rank() == 2 && !TrapReads(joined.data.tokens, link)) return "no trap";
    }
    std::string problem = joined.rank->RunAndCompare(joined.data);
    if (problem.empty()) continue;
    link.Say(problem);
    return "";
  }
}

TEST_P(TenantsTest, OneThatIsKilledInTheMiddleOfAnOperationHarmsTheOtherInNothing) {
  RunningDaemon daemon;
  auto b = StartRanks(daemon.socket_path(), Case(2), RunUntilTold, As("b"));
  for (const auto& rank : b) ASSERT_EQ(rank->link().Hear(), "running");
  for (int round = 0; round < 2; ++round) {
    auto a = StartRanks(daemon.socket_path(), Case(1), HoldARegion, As("a"));
    for (const auto& rank : a) ASSERT_EQ(rank->link().Hear(), "running");
    ASSERT_EQ(a[2]->link().Hear(), kTrapped);
    a[2]->Kill();
    for (const int rank : {0, 1}) {
      EXPECT_THAT(a[rank]->link().Hear(),
                  AllOf(StartsWith("[epd:UNAVAILABLE] group=shared tenant=a epoch=1"),
                        HasSubstr("rank=2 host=")));
      EXPECT_EQ(a[rank]->Finish(), "");
    }
  }
  b[0]->link().Say("end");
  EXPECT_THAT(FinishAll(b), Each("")) << "tenant b notices nothing, and its results stay right";
}

TEST_P(TenantsTest, ALostWorkerIsANewEpochForBoth) {
  RunningDaemon daemon;
  const auto run = [](JoinedRank& joined, Link& link) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    link.Say("epoch " + std::to_string(joined.rank->epoch()));
    if (link.Hear() != "go") return "not told to go on";
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    link.Say("epoch " + std::to_string(joined.rank->epoch()));
    link.Hear();  // Nobody leaves before all have run.
    return "";
  };
  auto a = StartRanks(daemon.socket_path(), Case(1), run, As("a"));
  auto b = StartRanks(daemon.socket_path(), Case(2), run, As("b"));
  for (auto* tenant : {&a, &b}) {
    for (const auto& rank : *tenant) ASSERT_EQ(rank->link().Hear(), "epoch 1");
  }
  const pid_t old_worker = daemon.worker_pid();
  kill(old_worker, SIGKILL);
  ASSERT_TRUE(Eventually(20, [&] { return daemon.worker_pid() != old_worker; }));
  for (auto* tenant : {&a, &b}) {
    for (const auto& rank : *tenant) rank->link().Say("go");
  }
  for (auto* tenant : {&a, &b}) {
    for (const auto& rank : *tenant) EXPECT_EQ(rank->link().Hear(), "epoch 2");
  }
  for (auto* tenant : {&a, &b}) {
    for (const auto& rank : *tenant) rank->link().Say("end");
    EXPECT_THAT(FinishAll(*tenant), Each(""));
  }
}

TEST_P(TenantsTest, AnotherSpecIsRefusedByNameAndHarmsNobody) {
  RunningDaemon daemon;
  auto b = StartRanks(daemon.socket_path(), Case(2), RunUntilTold, As("b"));
  for (const auto& rank : b) ASSERT_EQ(rank->link().Hear(), "running");
  ExchangeCase other = Case(1);
  other.hidden = 1024;
  auto a = StartRanks(
      daemon.socket_path(), other, [](JoinedRank&, Link&) { return "it was let in"; }, As("a"));
  for (const std::string& report : FinishAll(a)) {
    EXPECT_THAT(report, HasSubstr("group=shared tenant=a"));
    EXPECT_THAT(report, HasSubstr("hidden: got 1024, expected 2048"));
  }
  b[0]->link().Say("end");
  EXPECT_THAT(FinishAll(b), Each(""));
}

INSTANTIATE_TEST_SUITE_P(Executors, TenantsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
