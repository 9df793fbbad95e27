// Goal: through the C interface ranks join, find their operations by program or name, move rows, and are told what is
// wrong as a code and a text.
#include "client/program/epd_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "tests/unit/client/program/fake_epd_client.h"

extern "C" int JoinFromC(const char* alias, uint32_t ranks, epd_error* error);
extern "C" int ExchangeFromC(const char* alias, int32_t position, int32_t* total_recv, float* rows,
                             epd_error* error);

namespace epd::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kInvalidArgument = 3, kFailedPrecondition = 9, kUnavailable = 14;

epd_error NoError() {
  epd_error error = {};
  error.struct_size = sizeof error;
  return error;
}

epd_program_call CallAt(std::int32_t position, std::uint64_t execution = 0) {
  epd_program_call call = {};
  call.struct_size = sizeof call;
  call.alias = "default";
  call.position = position;
  call.execution = execution;
  return call;
}

// Prepares with no token, whose sizes fit the group of JoinFromC.
struct PrepareBuffers {
  std::int32_t none = 0, counts = 0, total = -1;
  std::vector<char> plan = std::vector<char>(4096);
};
int Prepare(const epd_program_call& call, PrepareBuffers& buffers, epd_error* error) {
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.topk_idx = &buffers.none;
  args.idx_bytes = 4;
  args.top_k = 1;
  args.token_counts = &buffers.counts;
  args.total_recv = &buffers.total;
  args.handle_mem = buffers.plan.data();
  args.handle_mem_bytes = buffers.plan.size();
  return epd_program_prepare(&call, &args, error);
}
int Prepare(const epd_program_call& call, epd_error* error) {
  PrepareBuffers buffers;
  return Prepare(call, buffers, error);
}

class EpdProgramTest : public testing::Test {
 protected:
  EpdProgramTest() { fake::Reset(); }
  ~EpdProgramTest() override {
    epd_program_finalize("default");
    EXPECT_EQ(fake::num_groups(), 0);
    EXPECT_EQ(fake::num_sessions(), 0);
  }
  void Join(std::uint32_t ranks) {
    ASSERT_EQ(JoinFromC("default", ranks, &error_), EPD_OK) << error_.message;
  }
  int Resolve(std::int32_t position, std::uint32_t* rank) {
    const epd_program_call call = CallAt(position);
    return epd_program_resolve(&call, rank, &error_);
  }
  epd_error error_ = NoError();
};

TEST_F(EpdProgramTest, RanksExchangeFromC) {
  Join(2);
  std::int32_t total[2] = {-1, -1};
  std::vector<std::vector<float>> rows(2, std::vector<float>(2));
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      epd_error error = NoError();
      EXPECT_EQ(ExchangeFromC("default", rank, &total[rank], rows[rank].data(), &error), EPD_OK)
          << error.message;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(total, ElementsAre(2, 0));
  EXPECT_THAT(rows[0], ElementsAre(1.0f, 0.0f));
  EXPECT_THAT(rows[1], ElementsAre(2.0f, 0.0f));
}

TEST_F(EpdProgramTest, APlaceIsResolvedToARank) {
  std::uint32_t rank = 0;
  EXPECT_EQ(Resolve(1, &rank), kFailedPrecondition);
  EXPECT_THAT(error_.message, StartsWith("[epd:FAILED_PRECONDITION] group=default"));
  Join(2);
  EXPECT_EQ(Resolve(1, &rank), EPD_OK);
  EXPECT_EQ(rank, 1u);
  EXPECT_EQ(Resolve(2, &rank), kInvalidArgument);
  EXPECT_THAT(error_.message, HasSubstr("position 2"));
}

TEST_F(EpdProgramTest, ExecutionsAreCountedWhateverTheyAreCalled) {
  Join(1);
  epd_program_call call = CallAt(0, 77);
  call.program[0] = 9;
  call.site = 3;
  for (const std::uint64_t execution : {77, 5, 5, 0}) {
    call.execution = execution;
    ASSERT_EQ(Prepare(call, &error_), EPD_OK) << error_.message;
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> numbers;
  for (const fake::Call& seen : fake::Calls()) {
    EXPECT_EQ(seen.program[0], 9);
    EXPECT_EQ(seen.ordinal, 3u);
    numbers.emplace_back(seen.execution, seen.occurrence);
  }
  EXPECT_THAT(numbers, ElementsAre(std::pair(0u, 0u), std::pair(1u, 0u), std::pair(1u, 1u),
                                   std::pair(2u, 0u)));
}

TEST_F(EpdProgramTest, APendingCallIsFinishedAndCountedOnce) {
  Join(1);
  for (int execution = 1; execution < 4; ++execution) {
    epd_program_pending* pending = nullptr;
    epd_program_call call = CallAt(0, execution);
    call.pending = &pending;
    PrepareBuffers buffers;
    ASSERT_EQ(Prepare(call, buffers, &error_), EPD_PENDING);
    ASSERT_NE(pending, nullptr);
    int code = -1;
    std::thread([&] { code = epd_program_finish(pending, &error_); }).join();
    ASSERT_EQ(code, EPD_OK) << error_.message;
    EXPECT_EQ(fake::Calls().back().execution, static_cast<std::uint64_t>(execution - 1));
    EXPECT_EQ(buffers.total, 0);
  }
  EXPECT_EQ(fake::Calls().size(), 3u);
  EXPECT_EQ(epd_program_finish(nullptr, &error_), kInvalidArgument);
}

TEST_F(EpdProgramTest, ACallTracedForOtherSizesIsRefusedOnAllRanks) {
  Join(1);
  epd_program_sizes sizes = {};
  sizes.struct_size = sizeof sizes;
  sizes.ranks = 1;
  sizes.experts = 2;
  epd_program_call call = CallAt(0);
  call.traced = &sizes;
  EXPECT_EQ(Prepare(call, &error_), kInvalidArgument);
  EXPECT_THAT(error_.message, HasSubstr("num_experts=2"));
  EXPECT_EQ(fake::Calls().back().operation, "refuse");
}

TEST_F(EpdProgramTest, AHandshakeEndsWithTheLastRankAndARefusalIsToldToAll) {
  Join(2);
  epd_program_call first = CallAt(0), second = CallAt(1);
  first.name = second.name = "roles/1/begin";
  auto waits =
      std::async(std::launch::async, [first] { return epd_program_handshake(&first, nullptr); });
  EXPECT_EQ(epd_program_handshake(&second, &error_), EPD_OK) << error_.message;
  EXPECT_EQ(waits.get(), EPD_OK);
  waits =
      std::async(std::launch::async, [first] { return epd_program_handshake(&first, nullptr); });
  EXPECT_EQ(epd_program_refuse(&second, kInvalidArgument, "no function", &error_),
            kInvalidArgument);
  EXPECT_THAT(error_.message, HasSubstr("no function"));
  EXPECT_EQ(waits.get(), kInvalidArgument);
}

TEST_F(EpdProgramTest, ALossIsReportedOnceAndWaitedFor) {
  EXPECT_EQ(epd_program_state("default", nullptr), EPD_PROGRAM_LEFT);
  Join(1);
  uint64_t epoch = 0;
  EXPECT_EQ(epd_program_wait("default", &error_), EPD_OK);
  EXPECT_EQ(epd_program_state("default", &epoch), EPD_PROGRAM_READY);
  EXPECT_GT(epoch, 0u);
  fake::CutSessions();
  EXPECT_EQ(epd_program_state("default", nullptr), EPD_PROGRAM_LOST);
  EXPECT_EQ(Prepare(CallAt(0), &error_), kUnavailable);
  EXPECT_EQ(epd_program_state("default", nullptr), EPD_PROGRAM_LOST);
  EXPECT_EQ(epd_program_wait("default", &error_), EPD_OK);
  EXPECT_EQ(epd_program_state("default", nullptr), EPD_PROGRAM_READY);
  EXPECT_EQ(Prepare(CallAt(0), &error_), EPD_OK);
}

TEST_F(EpdProgramTest, AStructOfAnOlderCallerHasDefaultsAndOneWithoutASizeIsRefused) {
  Join(1);
  epd_program_call older = CallAt(0);
  older.traced = reinterpret_cast<const epd_program_sizes*>(1);
  older.struct_size = offsetof(epd_program_call, traced);
  EXPECT_EQ(Prepare(older, &error_), EPD_OK) << error_.message;
  older.struct_size = 0;
  EXPECT_EQ(Prepare(older, &error_), kInvalidArgument);
  EXPECT_THAT(error_.message, HasSubstr("struct_size"));
  EXPECT_EQ(epd_program_join(nullptr, &error_), kInvalidArgument);
}

TEST_F(EpdProgramTest, AnErrorIsCutWhereItsStructEnds) {
  std::vector<char> memory(offsetof(epd_error, message) + 32, 'x');
  auto* const error = reinterpret_cast<epd_error*>(memory.data());
  error->struct_size = memory.size() - 8;
  EXPECT_EQ(epd_program_wait("default", error), kFailedPrecondition);
  EXPECT_EQ(std::string(error->message).size(), 23u);
  EXPECT_EQ(memory.back(), 'x');
}

TEST(EpdProgramStartTest, WorkRunsOnAThreadOfItsOwn) {
  std::promise<std::thread::id> thread;
  ASSERT_EQ(epd_program_start(
                [](void* context) {
                  static_cast<std::promise<std::thread::id>*>(context)->set_value(
                      std::this_thread::get_id());
                },
                &thread, nullptr),
            EPD_OK);
  EXPECT_NE(thread.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace epd::program
