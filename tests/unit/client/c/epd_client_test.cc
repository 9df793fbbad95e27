// Goal: through the C ABI alone, an exchange gives what plain loops give, and each way in which a
// daemon, a peer or a caller can fail gives its documented error, with zeros in the outputs and a
// library that can be used on. Long because one fake daemon and its ranks serve all of it.
#include "client/c/epd_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <semaphore>
#include <string>
#include <thread>

#include "client/c/status.h"
#include "tests/fakes/fake_daemon.h"
#include "tests/integration/client_c/harness/client_rank.h"
#include "tests/integration/client_c/harness/exchange_case.h"

namespace epd::testing {
namespace {

using client::Code;
using fakes::FakeDaemon;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Seconds = std::chrono::duration<double>;

int Number(Code code) { return static_cast<int>(code); }

size_t NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Every rank of a case in this process, each with a session of its own.
class Ranks {
 public:
  // Runs `body(rank, data)` for all ranks at once; its results by rank.
  template <typename Body>
  auto OnAll(Body body) {
    std::vector<decltype(body(*ranks_[0], data_[0]))> results(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = body(*ranks_[i], data_[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  Ranks(const FakeDaemon& daemon, const ExchangeCase& c, const JoinOptions& options = {})
      : data_(MakeExchange(c)) {
    for (uint32_t rank = 0; rank < c.num_ranks; ++rank) {
      clients_.emplace_back();
      const Result connected = Connect(daemon.socket_path(), &clients_.back());
      EXPECT_TRUE(connected.ok()) << connected.message;
      ranks_.push_back(std::make_unique<ClientRank>(clients_.back(), c, rank));
    }
    for (const Result& r :
         OnAll([&](ClientRank&rank, const RankData&) { return rank.Join(options); })) {
      EXPECT_TRUE(r.ok()) << r.message;
    }
  }
  ~Ranks() {
    ranks_.clear();
    for (epd_client* client : clients_) epd_disconnect(client);
  }

  std::vector<std::string> RunAndCompare() {
    return OnAll([](ClientRank& rank, const RankData& data) { return rank.RunAndCompare(data); });
  }

  ClientRank& operator[](size_t rank) { return *ranks_[rank]; }
  epd_client* client(size_t rank) { return clients_[rank]; }
  std::vector<RankData>& data() { return data_; }

 private:
  std::vector<RankData> data_;
  std::vector<epd_client*> clients_;
  std::vector<std::unique_ptr<ClientRank>> ranks_;
};

class ExchangeTest : public ::testing::TestWithParam<ExchangeCase> {};

TEST_P(ExchangeTest, AllFiveOperationsGiveWhatPlainLoopsGive) {
  SCOPED_TRACE(GetParam().ToString());
  FakeDaemon daemon;
  Ranks ranks(daemon, GetParam());
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  EXPECT_THAT(ranks.RunAndCompare(), Each(""))
      << "the second time, with slots and regions used before";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ExchangeTest,
    ::testing::Values(ExchangeCase{},
                      ExchangeCase{.num_ranks = 1, .num_experts = 3, .wide_indices = true},
                      ExchangeCase{.num_ranks = 4,
                                   .num_experts = 8,
                                   .top_k = 4,
                                   .hidden = 33,
                                   .alignment = 8,
                                   .dtype = EPD_DTYPE_BFLOAT16,
                                   .routing = Routing::kSomeMissing,
                                   .seed = 7},
                      ExchangeCase{.num_ranks = 3,
                                   .num_experts = 5,
                                   .dtype = EPD_DTYPE_FLOAT16,
                                   .num_tokens = {0, 5, 9},
                                   .expert_owner = {2, 0, 2, 0, 2},
                                   .seed = 3},
                      ExchangeCase{.routing = Routing::kNone},
                      ExchangeCase{.routing = Routing::kOneExpert},
                      ExchangeCase{.capacity = 5, .routing = Routing::kOneExpert, .drop = true}));

TEST(EpdClientTest, NoThreadRunsBeforeTheFirstOperation) {
  FakeDaemon daemon;
  const size_t before = NumThreads();
  Ranks ranks(daemon, {});
  EXPECT_EQ(NumThreads(), before);
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  EXPECT_EQ(NumThreads(), before + 2) << "one watchdog per client";
}

TEST(EpdClientTest, OneRanksBadIndexFailsBothRanksWithItsTextAndZeros) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  const int64_t good = ranks.data()[1].topk_idx[3];
  ranks.data()[1].topk_idx[3] = 4;
  const auto prepare = [](ClientRank& rank, const RankData& data) { return rank.Prepare(data); };
  for (const Result& r : ranks.OnAll(prepare)) {
    EXPECT_EQ(r.code, Number(Code::kInvalidArgument));
    EXPECT_THAT(r.message, HasSubstr("rank 1: "));
    EXPECT_THAT(r.message, StartsWith("[epd:INVALID_ARGUMENT] group=test epoch=1 rank="));
  }
  EXPECT_THAT(ranks[0].plan, Each(0));
  EXPECT_THAT(ranks[0].token_counts, Each(0));
  EXPECT_EQ(ranks[0].total_recv, 0);
  ranks.data()[1].topk_idx[3] = good;
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
}

TEST(EpdClientTest, ACorruptPlanIsDataLossOnEveryRank) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  ranks[0].plan[200] ^= 1;
  const auto dispatch = [](ClientRank& rank, const RankData& data) { return rank.Dispatch(data); };
  for (const Result& r : ranks.OnAll(dispatch))
    EXPECT_EQ(r.code, Number(Code::kDataLoss)) << r.message;
  EXPECT_THAT(ranks[1].recv_tokens, Each(0));
  EXPECT_THAT(ranks[1].recv_weights, Each(0));
}

TEST(EpdClientTest, APlanOfAnotherGroupIsRefused) {
  FakeDaemon daemon;
  Ranks first(daemon, {});
  Ranks second(daemon, {}, {.group = "other"});
  EXPECT_THAT(first.RunAndCompare(), Each(""));
  EXPECT_THAT(second.RunAndCompare(), Each(""));
  second[0].plan = first[0].plan;
  for (const Result& r :
       second.OnAll([](ClientRank&rank, const RankData&data) { return rank.Dispatch(data); })) {
    EXPECT_EQ(r.code, Number(Code::kInvalidArgument)) << r.message;
    EXPECT_THAT(r.message, HasSubstr("group"));
  }
}

TEST(EpdClientTest, AFailedPublishLeavesZeros) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  daemon.FailPublish(14, "[epd:UNAVAILABLE] rank=1 host=h pid=9 is gone");
  for (const Result& r :
       ranks.OnAll([](ClientRank&rank, const RankData&data) { return rank.Combine(data); })) {
    EXPECT_EQ(r.code, Number(Code::kUnavailable));
    EXPECT_EQ(r.message, "[epd:UNAVAILABLE] rank=1 host=h pid=9 is gone");
  }
  EXPECT_THAT(ranks[0].tokens, Each(0));
  daemon.FailPublish(0, "");
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
}

TEST(EpdClientTest, RowsReadAfterTheSessionEndedAreNotReported) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  daemon.SetEnded();
  for (const Result& r :
       ranks.OnAll([](ClientRank&rank, const RankData&data) { return rank.Dispatch(data); })) {
    EXPECT_EQ(r.code, Number(Code::kUnavailable)) << r.message;
  }
  EXPECT_THAT(ranks[0].recv_tokens, Each(0));
}

TEST(EpdClientTest, RowsThatAreFreedUnderAReaderAreItsSessionsEndAndNoDamage) {
  for (const int code : {0, 14}) {
    FakeDaemon daemon;
    Ranks ranks(daemon, {});
    v1::Goodbye goodbye;
    goodbye.mutable_status()->set_code(code);
    goodbye.mutable_status()->set_message("it held a region");
    daemon.EndWhenPublished(goodbye);
    const char* const says =
        code == 0 ? "daemon ended this session" : "has ended: it held a region";
    EXPECT_THAT(ranks.RunAndCompare(), Each(HasSubstr(says)));
  }
}

TEST(EpdClientTest, AWaitingCallEndsSoonAfterTheDaemonIsGone) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  Result result;
  std::thread waiting(
      [&] { result = ranks[0].Prepare(ranks.data()[0]); });  // Rank 1 does not come.
  const auto start = std::chrono::steady_clock::now();
  daemon.CloseSessions();
  waiting.join();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start).count(), 2.0);
  EXPECT_EQ(result.code, Number(Code::kUnavailable));
  EXPECT_THAT(result.message, HasSubstr("fake-node"));
  EXPECT_EQ(epd_check(ranks.client(0), nullptr), Number(Code::kUnavailable));
  EXPECT_EQ(ranks[0].Prepare(ranks.data()[0]).code, Number(Code::kUnavailable))
      << "and the next call says so too";
  Ranks again(daemon, {}, {.group = "again"});
  EXPECT_THAT(again.RunAndCompare(), Each("")) << "a new session in the same process works";
}

TEST(EpdClientTest, CheckSeesALostSessionBeforeAnyOperation) {
  FakeDaemon daemon;
  epd_client* client = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  EXPECT_EQ(epd_check(client, nullptr), EPD_OK);
  v1::Goodbye goodbye;
  goodbye.mutable_status()->set_code(14);
  goodbye.mutable_status()->set_message("this epd is shutting down");
  daemon.CloseSessions(goodbye);
  epd_error error = {};
  error.struct_size = sizeof error;
  EXPECT_EQ(epd_check(client, &error), Number(Code::kUnavailable));
  EXPECT_THAT(error.message, HasSubstr("this epd is shutting down"));
  epd_disconnect(client);
}

// Waits until a thread of this process sleeps, or has ended.
void AwaitSleep(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  std::string state;
  do {
    std::this_thread::yield();
    std::ifstream file(path);
    std::string number, name;
    if (!(file >> number >> name >> state)) return;
  } while (state != "S");
}

// Tells the group that it is formed anew and waits until both ranks have drained.
void Reform(FakeDaemon& daemon, bool wait, Code code, const char* text) {
  v1::Status cause;
  cause.set_code(Number(code));
  cause.set_message(text);
  daemon.ReformGroup("test", wait, cause);
  ASSERT_TRUE(daemon.AwaitDrained(2));
}

TEST(EpdClientTest, CallsWaitWhileTheGroupIsFormedAnewAndThenSucceed) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  Reform(daemon, /*wait=*/true, Code::kAborted, "the worker was replaced");
  EXPECT_EQ(daemon.drained()[0].formation(), 1u);
  ASSERT_EQ(daemon.drained()[0].counts_size(), 5) << "one per name";
  EXPECT_EQ(daemon.drained()[0].counts(0).begun(), 1u);
  std::atomic<bool> allowed = false;
  std::promise<pid_t> callers[2];
  std::thread allow([&] {
    for (std::promise<pid_t>& caller : callers) AwaitSleep(caller.get_future().get());
    allowed = true;
    daemon.AllowJoined("test");
  });
  const auto results = ranks.OnAll([&](ClientRank& rank, const RankData& data) {
    callers[rank.rank()].set_value(gettid());
    std::string problem = rank.RunAndCompare(data);
    return allowed ? problem : "did not wait for READY: " + problem;
  });
  EXPECT_THAT(results, Each(""));
  allow.join();
  epd_group_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(epd_group_get_info(ranks[0].group(), &info), EPD_OK);
  EXPECT_EQ(info.formation, 2u);
}

TEST(EpdClientTest, CallsOfAGroupThatLostAPeerFailAtOnceAndCountAsBegun) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  const auto prepare = [](ClientRank& rank, const RankData& data) { return rank.Prepare(data); };
  for (const Result& r : ranks.OnAll(prepare)) EXPECT_TRUE(r.ok()) << r.message;
  Reform(daemon, /*wait=*/false, Code::kUnavailable, "rank=1 host=h pid=1 is gone");
  const Result result = ranks[0].Prepare(ranks.data()[0]);
  EXPECT_EQ(result.code, Number(Code::kUnavailable));
  EXPECT_THAT(result.message, HasSubstr("rank=1 host=h pid=1 is gone"));
  ASSERT_TRUE(daemon.AwaitDrained(3));
  EXPECT_EQ(daemon.drained()[0].counts(0).begun(), 1u);
  EXPECT_EQ(daemon.drained()[2].counts(0).begun(), 2u);
}

// What is in the session's socket when a call begins, it knows: who joined again may have told the caller so.
TEST(EpdClientTest, ACallAfterALostRankHasJoinedAgainIsNotRefusedForItsDeath) {
  v1::Status cause;
  cause.set_code(Number(Code::kUnavailable));
  cause.set_message("rank=1 host=h pid=1 is gone");
  for (int loss = 0; loss < 20; ++loss) {
    FakeDaemon daemon;
    Ranks ranks(daemon, {.num_ranks = 1});
    ASSERT_THAT(ranks.RunAndCompare(), Each(""));
    daemon.ReformGroup("test", /*wait=*/false, cause);
    ASSERT_TRUE(daemon.AwaitDrained(1));
    daemon.AllowJoined("test");  // It lies in the socket, and no thread may have read it yet.
    ASSERT_THAT(ranks.RunAndCompare(), Each("")) << "after loss " << loss;
  }
}

TEST(EpdClientTest, AGroupThatWasClosedSaysWhy) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  epd_group_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(epd_group_get_info(ranks[0].group(), &info), EPD_OK);
  v1::ServerMessage message;
  message.mutable_group_ended()->set_group_id(info.group_id);
  message.mutable_group_ended()->mutable_status()->set_code(9);
  message.mutable_group_ended()->mutable_status()->set_message("an operator closed it");
  daemon.SetWorking(false);
  daemon.SendToAll(message);
  // What comes on the session after the message: then the message has been taken in.
  ClientRank other(ranks.client(0), ExchangeCase{.num_ranks = 1}, 0);
  ASSERT_TRUE(other.Join(JoinOptions{.group = "other"}).ok());
  const std::string text = ranks[0].Prepare(ranks.data()[0]).message;
  EXPECT_THAT(text, HasSubstr("[epd:FAILED_PRECONDITION] group=test"));
  EXPECT_THAT(text, HasSubstr("an operator closed it"));
}

TEST(EpdClientTest, TooManyOutstandingCallsAreRefusedAtOnce) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  daemon.SetWorking(false);
  std::vector<Result> results(300);
  std::vector<std::thread> threads;
  std::counting_semaphore<> refused(0);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      RankData data = ranks.data()[0];
      std::vector<int32_t> indices(data.topk_idx.begin(), data.topk_idx.end());
      std::vector<int32_t> counts(2);
      std::vector<uint8_t> plan(epd_handle_mem_size(2, 4, 8, 2));
      int32_t total = 0;
      epd_error error = {};
      error.struct_size = sizeof error;
      epd_prepare_args args = {};
      args.struct_size = sizeof args;
      args.key.struct_size = sizeof args.key;
      args.key.name = "many";
      args.key.execution = i;
      args.topk_idx = indices.data();
      args.idx_bytes = 4;
      args.num_tokens = 8;
      args.top_k = 2;
      args.token_counts = counts.data();
      args.total_recv = &total;
      args.handle_mem = plan.data();
      args.handle_mem_bytes = plan.size();
      results[i].code = epd_prepare(ranks[0].group(), &args, &error);
      results[i].message = error.message;
      if (results[i].code == Number(Code::kResourceExhausted)) refused.release();
    });
  }
  for (int i = 0; i < 300 - 256; ++i) EXPECT_TRUE(refused.try_acquire_for(Seconds(10))) << i;
  daemon.CloseSessions();
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(refused.try_acquire()) << "the others waited for their answer";
}

TEST(EpdClientTest, AForkedChildIsRefusedAndItsParentGoesOn) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        ranks[0].Prepare(ranks.data()[0]).code == Number(Code::kFailedPrecondition) &&
        epd_check(ranks.client(0), nullptr) == Number(Code::kFailedPrecondition) &&
        ranks[0].Leave().code == Number(Code::kFailedPrecondition);
    epd_disconnect(ranks.client(0));
    epd_client* own = nullptr;
    const bool connected = Connect(daemon.socket_path(), &own).ok();
    epd_disconnect(own);
    _exit(refused && connected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
}

TEST(EpdClientTest, EveryDescriptorIsClosedOnExec) {
  FakeDaemon daemon;
  const auto open_fds = [] {
    std::map<int, std::string> fds;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone);
      if (!gone) fds[std::stoi(entry.path().filename())] = target;
    }
    return fds;
  };
  const auto before = open_fds();
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  int found = 0;
  for (const auto& [fd, target] : open_fds()) {
    const int flags = fcntl(fd, F_GETFD);
    if (before.count(fd) != 0 || flags < 0) continue;
    ++found;
    EXPECT_NE(flags & FD_CLOEXEC, 0) << fd << " is " << target;
  }
  EXPECT_GE(found, 4) << "a socket and an eventfd of each client";
}

TEST(EpdClientTest, CallsForARankOfAnotherProcessAreRefusedHere) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  int32_t total = 0;
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.rank = 1;
  args.key.name = "prepare";
  args.total_recv = &total;
  epd_error error = {};
  error.struct_size = sizeof error;
  EXPECT_EQ(epd_prepare(ranks[0].group(), &args, &error), Number(Code::kInvalidArgument));
  EXPECT_THAT(error.message, HasSubstr("holds rank 0 of the group, not rank 1"));
}

// The first thread reads the socket for both; the second only waits.
TEST(EpdClientTest, AThreadThatIsCancelledInItsWaitLeavesTheOthersToRead) {
  FakeDaemon daemon;
  epd_client* client = nullptr;
  epd_client* other = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  ASSERT_TRUE(Connect(daemon.socket_path(), &other).ok());
  const ExchangeCase two{.num_ranks = 2};
  ClientRank unanswered(client, two, 0);
  pid_t reader = 0;
  std::binary_semaphore began(0);
  std::thread cancelled([&] {
    reader = gettid();
    began.release();
    unanswered.Join({.group = "nobody else joins"});
  });
  began.acquire();
  AwaitSleep(reader);
  ClientRank here(client, two, 0);
  ClientRank there(other, two, 1);
  auto joined = std::async(std::launch::async, [&] { return here.Join(); });
  pthread_cancel(cancelled.native_handle());
  cancelled.join();
  EXPECT_TRUE(there.Join().ok());
  EXPECT_EQ(joined.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  const Result got = joined.get();
  EXPECT_TRUE(got.ok()) << got.message;
  EXPECT_TRUE(here.Leave().ok());
  EXPECT_TRUE(there.Leave().ok());
  epd_disconnect(client);
  epd_disconnect(other);
}

TEST(EpdClientTest, ACallAfterDisconnectIsRefused) {
  FakeDaemon daemon;
  epd_client* client = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  const ExchangeCase alone{.num_ranks = 1};
  ClientRank rank(client, alone, 0);
  ASSERT_TRUE(rank.Join().ok());
  epd_disconnect(client);
  EXPECT_EQ(rank.Prepare(MakeExchange(alone)[0]).code, Number(Code::kFailedPrecondition));
}

struct HostileDaemon {
  const char* name;
  FakeDaemon::Options options;
  Code code;
  const char* text;
};

v1::Goodbye Refusal(int code, const char* text) {
  v1::Goodbye goodbye;
  goodbye.mutable_status()->set_code(code);
  goodbye.mutable_status()->set_message(text);
  return goodbye;
}

// Found by tests/long/run kill-faults, worker.session.no_memory: it told of a broken pipe.
TEST(EpdClientTest, AJoinThatFindsTheSessionEndedSaysWhy) {
  FakeDaemon daemon;
  epd_client* client = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  daemon.CloseSessions(Refusal(8, "the worker cannot serve session 1"));
  const Result joined = ClientRank(client, ExchangeCase(), 0).Join({.group = "late"});
  EXPECT_EQ(joined.code, Number(Code::kResourceExhausted));
  EXPECT_THAT(joined.message, HasSubstr("the worker cannot serve session 1"));
  epd_disconnect(client);
}

TEST(EpdClientTest, AnAnswerToAttachThatIsNotOneIsRefused) {
  std::vector<HostileDaemon> daemons(8);
  daemons[0] = {"garbage", {}, Code::kDataLoss, "not a message"};
  daemons[0].options.raw_answer = "\xff\xff\xff\xff\xff";
  daemons[1] = {"another message", {}, Code::kDataLoss, "expected Attached"};
  daemons[1].options.raw_answer = std::string("\x22\x00", 2);
  daemons[2] = {"one descriptor", {}, Code::kDataLoss, "1 descriptors"};
  daemons[2].options.attach_fds = 1;
  daemons[3] = {"fifty descriptors", {}, Code::kDataLoss, "50 descriptors"};
  daemons[3].options.attach_fds = 50;
  daemons[4] = {"foreign segment", {}, Code::kDataLoss, "slots segment"};
  daemons[4].options.slots_magic = 1;
  daemons[5] = {"segment that may shrink", {}, Code::kDataLoss, "sealed"};
  daemons[5].options.shrinkable = true;
  daemons[6] = {"newer version", {}, Code::kUnimplemented, "version 9"};
  daemons[6].options.version = 9;
  daemons[7] = {"other user", {}, Code::kPermissionDenied, "uid 7"};
  daemons[7].options.refuse = Refusal(7, "this epd serves uid 7");
  for (const HostileDaemon& hostile : daemons) {
    SCOPED_TRACE(hostile.name);
    FakeDaemon daemon(hostile.options);
    epd_client* client = nullptr;
    const Result result = Connect(daemon.socket_path(), &client);
    EXPECT_EQ(result.code, Number(hostile.code)) << result.message;
    EXPECT_THAT(result.message, HasSubstr(hostile.text));
    EXPECT_EQ(client, nullptr);
  }
}

TEST(EpdClientTest, AJoinedThatLacksArenasIsRefused) {
  FakeDaemon::Options options;
  options.missing_arenas = 1;
  FakeDaemon daemon(options);
  epd_client* client = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  ClientRank rank(client, {.num_ranks = 1}, 0);
  const Result result = rank.Join();
  EXPECT_EQ(result.code, Number(Code::kDataLoss));
  EXPECT_THAT(result.message, HasSubstr("announced 1 arenas with descriptors and slots of 0 "
                                        "workers, and sent 0 descriptors"));
  epd_disconnect(client);
}

TEST(EpdClientTest, BadArgumentsAreNamed) {
  FakeDaemon daemon;
  epd_client* client = nullptr;
  EXPECT_THAT(Connect("/tmp/" + std::string(200, 'x'), &client).message,
              HasSubstr("205 bytes and may have 107"));
  const Result nobody = Connect("/tmp/there-is-no-epd.sock", &client);
  EXPECT_EQ(nobody.code, Number(Code::kUnavailable));
  EXPECT_THAT(nobody.message, HasSubstr("/tmp/there-is-no-epd.sock: No such file"));
  epd_connect_args unset = {};
  EXPECT_EQ(epd_connect(&unset, &client, nullptr), Number(Code::kInvalidArgument));
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  ClientRank spaced(client, {.num_ranks = 1}, 0);
  EXPECT_THAT(spaced.Join({.group = "a b"}).message, HasSubstr("spec.name: byte 0x20"));
  EXPECT_THAT(spaced.Join({.group = ""}).message, HasSubstr("spec.name must be set"));
  ClientRank outside(client, {.num_ranks = 1}, 3);
  EXPECT_THAT(outside.Join().message, HasSubstr("no such rank"));
  epd_group* group = nullptr;
  EXPECT_EQ(epd_join(client, nullptr, &group, nullptr), Number(Code::kInvalidArgument));
  EXPECT_EQ(epd_prepare(nullptr, nullptr, nullptr), Number(Code::kInvalidArgument));
  epd_disconnect(client);
  epd_disconnect(nullptr);
}

TEST(EpdClientTest, SizesThatDoNotFitTheGroupAreNamedOnEveryRank) {
  FakeDaemon daemon;
  Ranks ranks(daemon, {});
  EXPECT_THAT(ranks.RunAndCompare(), Each(""));
  ExchangeCase wide;
  wide.hidden = 32;
  const auto dispatch = [&](ClientRank& rank, const RankData& data) {
    if (rank.rank() == 0) return rank.Dispatch(data);
    std::vector<uint8_t> rows(size_t{8} * 32 * 4);
    std::vector<float> weights(16);
    epd_scatter_args args = {};
    args.struct_size = sizeof args;
    args.rank = 1;
    args.key.name = "dispatch";
    args.key.execution = EPD_EXECUTION_NEXT;
    args.top_k = 2;
    args.dtype = EPD_DTYPE_FLOAT32;
    args.hidden = 32;
    args.num_tokens = 8;
    args.tokens = rows.data();
    args.topk_weights = weights.data();
    args.recv_topk_weights = weights.data();
    epd_error error = {};
    error.struct_size = sizeof error;
    const int code = epd_dispatch(rank.group(), &args, &error);
    return Result{code, error.message};
  };
  for (const Result& r : ranks.OnAll(dispatch)) {
    EXPECT_EQ(r.code, Number(Code::kInvalidArgument));
    EXPECT_THAT(
        r.message,
        HasSubstr("rank 1: hidden: got 32 elements of 4 bytes, the group was formed for 16 "));
  }
}

}  // namespace
}  // namespace epd::testing
