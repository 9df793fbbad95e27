// Goal: whatever stands in a slot, the worker answers it with an error that says what was got and
// what was expected, and nobody but the sender (or its own operation's ranks) notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "tests/seed/seed.h"
#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TestSeed;
using Code = absl::StatusCode;

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(2)); }
  // Sends rank 0's sound dispatch with one change and expects an answer at once.
  void Expect(Code code, const std::string& text,
              const std::function<void(shm::SlotRequest&)>& change) {
    shm::SlotRequest request = h_.Dispatch(0, next_execution_++);
    change(request);
    const Submission submission = h_.Take(request, h_.SessionOf(0));
    EXPECT_EQ(h_.code(submission), code) << text << ": " << h_.text(submission);
    EXPECT_THAT(h_.text(submission), HasSubstr(text));
  }
  ExchangeHarness h_;
  uint64_t next_execution_ = 0;
};

TEST_F(Hostile, PlaceIsCheckedAndNamesBothValues) {
  Expect(Code::kAborted, "does not serve group id 99", [](auto& r) { r.group_id = 99; });
  Expect(Code::kAborted, "epoch 4 formation 1, the group is at epoch 3 formation 1",
         [](auto& r) { r.epoch = 4; });
  Expect(Code::kAborted, "formation 9", [](auto& r) { r.formation = 9; });
  Expect(Code::kInvalidArgument, "rank is 2, expected less than num_ranks=2",
         [](auto& r) { r.rank = 2; });
  Expect(Code::kPermissionDenied, "rank 1 belongs to session 2", [](auto& r) { r.rank = 1; });
  Expect(Code::kInvalidArgument, "step is 8", [](auto& r) { r.step = static_cast<shm::Step>(8); });
  Expect(Code::kInvalidArgument, "has_name is 2", [](auto& r) { r.has_name = 2; });
  Expect(Code::kInvalidArgument, "execution number", [](auto& r) { r.execution = UINT64_MAX; });
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
}

TEST_F(Hostile, EveryNumberOfAnAnnounceIsChecked) {
  Expect(Code::kInvalidArgument, "kind is 6, expected 1 to 5",
         [](auto& r) { r.kind = static_cast<shm::Kind>(6); });
  Expect(Code::kInvalidArgument, "dtype is 5", [](auto& r) { r.dtype = 5; });
  Expect(Code::kInvalidArgument, "dtype is 66304", [](auto& r) { r.dtype = 0x10300; });
  Expect(Code::kInvalidArgument, "dtype is 65792", [](auto& r) {
    r.kind = shm::Kind::kCombine;  // Rows of bytes cannot be summed.
    r.dtype = 0x10100;
  });
  Expect(Code::kInvalidArgument, "dtype is 0", [](auto& r) { r.dtype = 0; });
  Expect(Code::kInvalidArgument, "top_k is 3, expected 1 to 2", [](auto& r) { r.top_k = 3; });
  Expect(Code::kInvalidArgument, "top_k is 0", [](auto& r) { r.top_k = 0; });
  Expect(Code::kInvalidArgument, "alignment is 3", [](auto& r) { r.alignment = 3; });
  Expect(Code::kInvalidArgument, "row_bytes is 0", [](auto& r) { r.row_bytes = 0; });
  Expect(Code::kInvalidArgument, "plan_id is 0", [](auto& r) { r.plan_id = 0; });
  Expect(Code::kInvalidArgument, "has_weights is 2", [](auto& r) { r.has_weights = 2; });
  Expect(Code::kInvalidArgument, "num_tokens is 17, expected at most max_tokens_per_rank=16",
         [](auto& r) { r.num_tokens = 17; });
  Expect(Code::kInvalidArgument, "recv_capacity", [](auto& r) { r.recv_capacity = UINT64_MAX; });
  Expect(Code::kResourceExhausted, "exceed an arena of 1048576",
         [](auto& r) { r.stage_bytes = UINT64_MAX; });
  Expect(Code::kResourceExhausted, "exceed an arena",
         [](auto& r) { r.out_bytes = UINT64_MAX - 100; });
  Expect(Code::kInvalidArgument, "error_code is 99", [](auto& r) { r.error_code = 99; });
  Expect(Code::kInvalidArgument, "stage_bytes is 15, expected at least 16", [](auto& r) {
    r.kind = shm::Kind::kPrepare;
    r.stage_bytes = 15;
  });
}

TEST_F(Hostile, TextWithoutAnEndIsCutAndCleaned) {
  shm::SlotRequest request = h_.Request(0);
  request.error_code = 3;
  std::memset(request.error, '\n', sizeof request.error);
  const Submission submission = h_.Take(request);
  EXPECT_EQ(h_.text(submission).find('\n'), std::string::npos);
  EXPECT_THAT(h_.text(submission), HasSubstr(std::string(sizeof request.error, '?')));
}

TEST_F(Hostile, NameWithoutAnEndIsCutAndCleaned) {
  shm::SlotRequest request = h_.Request(0);
  request.has_name = 1;
  std::memset(request.announce.name, 0xff, sizeof request.announce.name);
  std::memset(request.error, 'e', sizeof request.error);
  const Submission waits = h_.Take(request);
  EXPECT_FALSE(h_.answered(waits));
  const std::string name = "name=" + std::string(sizeof request.announce.name, '?');
  EXPECT_THAT(h_.text(h_.Take(request)), AllOf(HasSubstr(name + " "), HasSubstr("used once")));
}

// The union's members lie over each other: what a step does not have is not looked at, whatever stands there.
TEST_F(Hostile, EachStepIsReadByItsTagOnly) {
  const auto expect = [&](shm::Step step, unsigned char byte, Code code, const std::string& text) {
    shm::SlotRequest request = h_.Dispatch(0, next_execution_++);
    std::memset(&request.announce, byte, sizeof request.announce);
    request.step = step;
    const Submission submission = h_.Take(request, h_.SessionOf(0));
    EXPECT_EQ(h_.code(submission), code) << static_cast<uint32_t>(step);
    EXPECT_THAT(h_.text(submission), HasSubstr(text));
  };
  const std::string all = std::to_string(UINT64_MAX);
  expect(shm::Step::kPublish, 0xff, Code::kAborted, "operation " + all + " is not open");
  expect(shm::Step::kPulled, 0xff, Code::kAborted, "operation " + all + " is not open");
  expect(shm::Step::kAnnounceStaged, 0xff, Code::kInvalidArgument, "eager buffer is 4294967295");
  expect(shm::Step::kStreamPublish, 0xff, Code::kInvalidArgument, "names slot 4294967295");
  expect(shm::Step::kStreamPulled, 0xff, Code::kInvalidArgument, "names slot 4294967295");
  expect(shm::Step::kStreamPublish, 0, Code::kAborted, "an earlier worker");
  expect(static_cast<shm::Step>(0), 0xff, Code::kInvalidArgument, "step is 0");
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
}

TEST_F(Hostile, StepsOfOthersOperationsAreRefused) {
  const auto submissions = h_.AnnounceAll({h_.Request(0), h_.Request(1)});
  const OperationId op = h_.operation(submissions[0]);
  h_.exchange.AddSession(SessionId(77));
  shm::SlotRequest publish = h_.Request(1);
  publish.step = shm::Step::kPublish;
  publish.operation.op_id = op.value;
  const Submission foreign = h_.Take(publish, SessionId(77));
  EXPECT_EQ(h_.code(foreign), Code::kPermissionDenied);
  EXPECT_EQ(h_.code(h_.Step(0, OperationId(op.value + 1), shm::Step::kPublish)), Code::kAborted);
  EXPECT_EQ(h_.code(h_.Step(0, op, shm::Step::kPulled)), Code::kInvalidArgument)
      << "before publish";
  h_.Step(0, op, shm::Step::kPublish);
  EXPECT_EQ(h_.code(h_.Step(0, op, shm::Step::kPublish)), Code::kInvalidArgument) << "twice";
  EXPECT_EQ(h_.code(h_.Step(1, op, shm::Step::kPublish)), Code::kOk);
}

TEST_F(Hostile, TooManyOpenOperationsAreRefusedWithoutHurtingOthers) {
  Submission last;
  for (uint64_t i = 0; i < shm::kSlotsPerSession; ++i) last = h_.Take(h_.Request(0, i));
  EXPECT_FALSE(h_.answered(last));
  const Submission over = h_.Take(h_.Request(0, shm::kSlotsPerSession));
  EXPECT_EQ(h_.code(over), Code::kResourceExhausted);
  EXPECT_THAT(h_.text(over), HasSubstr("256 operations open"));
  EXPECT_EQ(h_.code(h_.Take(h_.Request(1, 0))), Code::kOk);
}

TEST_F(Hostile, RandomRequestsAreAlwaysAnsweredOrOpen) {
  std::mt19937 random(TestSeed());
  h_.exchange.AddSession(SessionId(77));
  for (int i = 0; i < 5000; ++i) {
    const uint32_t rank = random() % 3;
    shm::SlotRequest request = h_.Dispatch(rank, random() % 4);
    request.step = static_cast<shm::Step>(random() % 9);
    auto* bytes = reinterpret_cast<unsigned char*>(&request);
    for (int b = 0; b < 6; ++b) {
      const size_t at = random() % sizeof request;
      bytes[at] = static_cast<uint8_t>(random());
    }
    h_.Take(request, SessionId(random() % 2 == 0 ? 77 : 1));
    ASSERT_TRUE(h_.exchange.staging().pool().CheckConsistent().ok());
  }
  h_.Advance(absl::Minutes(11));
  h_.EndTenant(absl::AbortedError("end"));
  h_.exchange.SessionDead(SessionId(1), absl::UnavailableError("end"), false, h_.now);
  h_.SessionDead(SessionId(2), absl::UnavailableError("end"));
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
  EXPECT_TRUE(h_.arenas.empty());
}

TEST_F(Hostile, StartTenantOfUnknownSessionsOrOldFormationsIsRefused) {
  TenantStart again = h_.Start(h_.Spec(2));
  EXPECT_EQ(h_.exchange.StartTenant(again, h_.now).code(), Code::kAlreadyExists);
  TenantStart unknown = h_.Start(h_.Spec(2), GroupId(8));
  unknown.members[1].session = SessionId(55);
  EXPECT_EQ(h_.exchange.StartTenant(unknown, h_.now).code(), Code::kInvalidArgument);
  TenantStart fewer = h_.Start(h_.Spec(2), GroupId(8));
  fewer.members.pop_back();
  EXPECT_EQ(h_.exchange.StartTenant(fewer, h_.now).code(), Code::kInvalidArgument);
}

// Programs of many ranks whose executions are far apart, as only somebody makes them who wants the worker's memory.
TEST_F(Hostile, ProgramsOfAllAUsersGroupsAreBoundedAndThoseOfGroupsThatEndComeBack) {
  constexpr uint32_t kRanks = 240;
  const auto run_programs = [&](GroupId group) {
    DirectOutcome outcome;
    outcome.group = group;
    outcome.formation = Formation(1);
    outcome.said.kind = shm::Kind::kDispatch;
    outcome.raw_execution = kMaxExecution;
    for (uint32_t n = 0; n < kMaxPrograms; ++n) {
      std::memcpy(outcome.key.execution.program.data(), &n, sizeof n);
      h_.exchange.NoteDirect(outcome, h_.now);
    }
  };
  const auto call = [&](GroupId group, uint64_t execution) {
    shm::SlotRequest request = h_.Request(1, execution);
    request.group_id = group.value;
    request.program[15] = 1;  // None of those.
    return h_.Take(request);
  };
  for (uint64_t group = 100; group < 103; ++group) h_.StartTenant(h_.Spec(kRanks), GroupId(group));
  run_programs(GroupId(100));
  const Submission own = call(GroupId(100), 0);
  EXPECT_EQ(h_.code(own), Code::kResourceExhausted);
  EXPECT_THAT(h_.text(own), AllOf(HasSubstr("epoch=3 rank=1 phase=announce"),
                                  HasSubstr("programs and names of 240 ranks take"),
                                  HasSubstr(absl::StrCat("the most is ", kMaxProgramBytes))));
  run_programs(GroupId(101));
  const Submission refused = call(GroupId(102), 0);
  EXPECT_EQ(h_.code(refused), Code::kResourceExhausted);
  EXPECT_THAT(
      h_.text(refused),
      AllOf(HasSubstr("epoch=3 rank=1 phase=announce"), HasSubstr("uid 0 with all its groups"),
            HasSubstr(absl::StrCat("the most is ", kMaxProgramBytesOfUid))));
  h_.exchange.EndTenant(GroupId(100), Formation(1), absl::OkStatus(), h_.now);
  h_.Perform();
  EXPECT_FALSE(h_.answered(call(GroupId(102), 1))) << "it waits for the others";
}

}  // namespace
}  // namespace epd
