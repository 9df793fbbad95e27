// Goal: a real epd-worker process serves operations over shared memory, leaves records from which
// epd can answer when it is killed, and answers everybody itself when epd is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "daemon/backend/sha256.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/slot_word.h"
#include "tests/fakes/fake_epd.h"
#include "tests/seed/seed.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kAborted = static_cast<uint32_t>(absl::StatusCode::kAborted);
constexpr uint32_t kUnavailable = static_cast<uint32_t>(absl::StatusCode::kUnavailable);
constexpr uint32_t kSlot = 5;

// The libnccl that deploy/setup provides, where it has run; else whatever the worker finds itself.
const char* ProvidedNccl() { return std::getenv("EPD_LIBNCCL"); }

FakeEpdOptions WithProvidedNccl() {
  FakeEpdOptions options;
  if (ProvidedNccl() != nullptr) options.nccl_library = ProvidedNccl();
  return options;
}

class WorkerProcess : public ::testing::Test {
 protected:
  void Sessions(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) epd_.AddSession(i + 1);
  }
  // Announces `request` with every rank and returns the operation's id.
  uint64_t AnnounceAll(FakeTenant& tenant, const shm::SlotRequest& request) {
    for (uint32_t r = 0; r < tenant.ranks.size(); ++r) {
      shm::SlotRequest mine = request;
      mine.rank = r;
      tenant.ranks[r]->Arm(kSlot, mine);
    }
    for (FakeSession* session : tenant.ranks) EXPECT_EQ(session->Wait(kSlot), 0u);
    return tenant.ranks[0]->slot(kSlot).reply.op_id;
  }
  void Step(FakeTenant& tenant, uint32_t rank, uint64_t op_id, shm::Step step) {
    shm::SlotRequest request = tenant.Announce(rank);
    request.step = step;
    request.operation.op_id = op_id;
    tenant.ranks[rank]->Arm(kSlot, request);
  }
  v1::WorkerSnapshot Snapshot() {
    v1::ToWorker ask;
    ask.mutable_get_snapshot()->set_request_id(3);
    epd_.Send(ask);
    return epd_.Receive().snapshot();
  }

  FakeEpd epd_{WithProvidedNccl()};
};

TEST_F(WorkerProcess, RunsAnOperationOfTwoSessionsEndToEnd) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  const uint64_t op = AnnounceAll(tenant, tenant.Announce(0));
  const shm::SlotReply& reply = tenant.ranks[0]->slot(kSlot).reply;
  EXPECT_EQ(tenant.ranks[1]->slot(kSlot).reply.op_id, op);
  EXPECT_EQ(tenant.ranks[1]->slot(kSlot).reply.region_offset, reply.region_offset);
  EXPECT_EQ(reply.region_bytes, 4096u);

  for (uint32_t r = 0; r < 2; ++r) {
    const int32_t counts[4] = {1, 0, static_cast<int32_t>(r), -5};
    std::memcpy(tenant.arena(r) + reply.region_offset, counts, sizeof counts);
  }
  Step(tenant, 0, op, shm::Step::kPublish);
  EXPECT_EQ(Snapshot().operations(0).phase(), "admitted");
  EXPECT_FALSE(tenant.ranks[0]->answered(kSlot)) << "answered before rank 1 published";
  Step(tenant, 1, op, shm::Step::kPublish);
  EXPECT_EQ(tenant.ranks[0]->Wait(kSlot), 0u);
  EXPECT_EQ(tenant.ranks[1]->Wait(kSlot), 0u);
  for (uint32_t r = 0; r < 2; ++r) Step(tenant, r, op, shm::Step::kPulled);
  EXPECT_EQ(tenant.ranks[0]->Wait(kSlot), 0u);
  EXPECT_EQ(tenant.ranks[1]->Wait(kSlot), 0u);

  const v1::WorkerSnapshot after = Snapshot();
  EXPECT_EQ(after.operations_size(), 0);
  EXPECT_EQ(after.tenants(0).num_operations(), 1u);
  EXPECT_THAT(after.tenants(0).expert_routes(), ElementsAre(2, 0, 1, 0));
  // The eager buffers stay with the arenas.
  const uint64_t eager =
      2 * shm::kEagerBufferBytes * tenant.ranks[0]->slot(kSlot).eager.num_eager_buffers;
  EXPECT_GT(eager, 0u);
  EXPECT_EQ(after.arena_sets(0).in_use_bytes(), eager);
  EXPECT_EQ(after.pool_committed_bytes(), eager + 2 * 4096u);
}

TEST_F(WorkerProcess, SleepsWhileNothingIsArmedAndWakesForTheNextUse) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  for (uint64_t i = 0; i < 20; ++i) {
    while (tenant.ranks[0]->segment().header.asleep.load() == 0) std::this_thread::yield();
    shm::SlotRequest request = tenant.Announce(0);
    request.execution = i;
    const uint64_t op = AnnounceAll(tenant, request);
    for (const shm::Step step : {shm::Step::kPublish, shm::Step::kPulled}) {
      for (uint32_t r = 0; r < 2; ++r) Step(tenant, r, op, step);
      for (uint32_t r = 0; r < 2; ++r) ASSERT_EQ(tenant.ranks[r]->Wait(kSlot), 0u);
    }
  }
}

TEST_F(WorkerProcess, PeersDescriptorsAreReadOnly) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  const int read_only = tenant.fds[1].get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, read_only, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(tenant.fds[0].get(), 0), 0) << "an arena can be shrunk";
}

TEST_F(WorkerProcess, ATenantOfTooManyRanksIsRefusedAndTheWorkerLives) {
  Sessions(1);
  constexpr uint32_t kTooMany = limits::kServedRanks + 1;
  v1::ToWorker message;
  v1::StartTenant& start = *message.mutable_start_tenant();
  start.set_group_id(8);
  start.set_epoch(1);
  start.set_formation(1);
  *start.mutable_spec() = FakeSpec(kTooMany);
  start.mutable_spec()->set_num_experts(kTooMany);
  for (uint32_t rank = 0; rank < kTooMany; ++rank) {
    v1::StartTenant::Member& member = *start.add_members();
    member.set_rank(rank);
    member.set_session_id(rank == 0 ? 1 : 0);
  }
  epd_.Send(message);
  const v1::FromWorker answer = epd_.Receive();
  ASSERT_TRUE(answer.has_tenant_ready()) << answer.ShortDebugString();
  EXPECT_EQ(answer.tenant_ready().status().code(),
            static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(answer.tenant_ready().status().message(),
              HasSubstr("num_ranks: got 1025, expected at most 1024"));
  EXPECT_EQ(Snapshot().tenants_size(), 0);
}

TEST_F(WorkerProcess, ADeadSessionFailsItsPeersAtOnceAndNamesItsRank) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  tenant.ranks[0]->Arm(kSlot, tenant.Announce(0));
  v1::ToWorker dead;
  dead.mutable_session_dead()->set_session_id(2);
  dead.mutable_session_dead()->mutable_cause()->set_code(
      static_cast<int>(absl::StatusCode::kUnavailable));
  dead.mutable_session_dead()->mutable_cause()->set_message("its process was killed");
  epd_.Send(dead);
  EXPECT_EQ(tenant.ranks[0]->Wait(kSlot), static_cast<uint32_t>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(tenant.ranks[0]->slot(kSlot).reply.message,
              AllOf(HasSubstr("rank=1 host=host1 pid=101"), HasSubstr("its process was killed")));
}

TEST_F(WorkerProcess, KilledWorkerLeavesRecordsThatSayWhatWasDecided) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  const uint64_t op = AnnounceAll(tenant, tenant.Announce(0));
  Step(tenant, 0, op, shm::Step::kPublish);
  const std::atomic<uint64_t>& armed = tenant.ranks[0]->slot(kSlot).word;
  for (int turn = 0; turn < 1000 && armed.load() == shm::kArmed; ++turn) {
    EXPECT_EQ(Snapshot().operations_size(),
              1);  // One turn of its loop, until it takes the publish.
  }
  epd_.KillWorker();

  const uint64_t word = tenant.ranks[0]->slot(kSlot).word.load();
  const shm::SlotRecord& record = epd_.records().slots[0][kSlot];
  EXPECT_EQ(record.claim.load(),
            (uint64_t{static_cast<uint32_t>(shm::Step::kPublish)} << 32) | shm::Ready(word));
  EXPECT_EQ(record.op_id.load(), op);
  const shm::OperationRecord& operation = epd_.records().operations[op % shm::kMaxOperations];
  EXPECT_EQ(operation.op_id.load(), op);
  EXPECT_EQ(operation.outcome.load(), static_cast<uint32_t>(shm::Outcome::kUndecided));
}

TEST_F(WorkerProcess, ReplacementUsesNewClaimsAndNewOperationsOnOldSlots) {
  Sessions(2);
  FakeTenant first = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  const uint64_t old_op = AnnounceAll(first, first.Announce(0));
  const uint64_t old_claim = epd_.records().slots[0][kSlot].claim.load();
  epd_.KillWorker();
  epd_.StartWorker();
  // Armed before the new worker knows the session: it is looked at all the same.
  first.ranks[0]->Arm(kSlot, first.Announce(0));
  for (auto& session : epd_.sessions()) epd_.Introduce(*session);
  EXPECT_EQ(first.ranks[0]->Wait(kSlot), kAborted);
  EXPECT_GT(static_cast<uint32_t>(epd_.records().slots[0][kSlot].claim.load()),
            static_cast<uint32_t>(old_claim));

  FakeTenant second = StartFakeTenant(epd_, 7, 2, FakeSpec(2));
  EXPECT_GT(AnnounceAll(second, second.Announce(0)), old_op);
}

TEST_F(WorkerProcess, EndOfEpdAnswersEveryOpenUseAndEndsTheWorker) {
  Sessions(2);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  tenant.ranks[0]->Arm(kSlot, tenant.Announce(0));
  epd_.CloseSocket();
  EXPECT_EQ(tenant.ranks[0]->Wait(kSlot), kUnavailable);
  const std::optional<int> status = epd_.WaitForExit();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
}

TEST_F(WorkerProcess, SurvivesHostileWordsAndRequestsAndServesOthers) {
  Sessions(3);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(2));
  FakeSession& hostile = *epd_.sessions()[2];
  std::mt19937 random(testing::TestSeed());
  for (int round = 0; round < 2000; ++round) {
    const uint32_t slot = random() % shm::kSlotsPerSession;
    shm::SlotRequest request = tenant.Announce(random() % 3);
    auto* bytes = reinterpret_cast<unsigned char*>(&request);
    for (int i = 0; i < 8; ++i) {
      const size_t at = random() % sizeof request;
      bytes[at] = static_cast<uint8_t>(random());
    }
    hostile.Arm(slot, request);
    if (round % 3 == 0) hostile.slot(slot).word.store(random() % 4);
    hostile.segment().header.armed[random() % 4].store(random());
  }
  const uint64_t op = AnnounceAll(tenant, tenant.Announce(0));
  EXPECT_NE(op, 0u);
  EXPECT_EQ(Snapshot().operations_size(), 1);
}

// A client may write over its slots before a worker, or the next one, has looked at them.
TEST_F(WorkerProcess, ASessionWhoseSlotsAreDamagedEndsAndTheOthersAreServed) {
  Sessions(2);
  FakeSession& damaged = *epd_.sessions()[1];
  damaged.segment().header.magic = 0;
  epd_.KillWorker();
  epd_.StartWorker();
  for (const auto& session : epd_.sessions()) epd_.Introduce(*session);
  const v1::FromWorker answer = epd_.Receive();
  EXPECT_EQ(answer.evict_session().session_id(), damaged.id()) << answer.ShortDebugString();
  EXPECT_EQ(answer.evict_session().cause().code(), static_cast<int>(absl::StatusCode::kDataLoss));
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(1));
  EXPECT_NE(AnnounceAll(tenant, tenant.Announce(0)), 0u);
}

TEST_F(WorkerProcess, AMessageThatItCannotTakeIsToldAndTheNextOneIsTaken) {
  Sessions(1);
  v1::ToWorker no_text;
  no_text.mutable_add_session()->set_client_name("\xc3");  // Does not parse.
  v1::ToWorker without_descriptors;
  without_descriptors.mutable_add_session()->set_session_id(9);
  v1::ToWorker second_hello;
  second_hello.mutable_hello()->set_staging_bytes(1);
  const std::string of_a_newer_epd("\xa2\x06\x00", 3);  // Field 100, empty.
  for (const std::string& bytes :
       {std::string(100, '\xff'), std::string(limits::kDatagramBytes + 1, 'x'),
        no_text.SerializePartialAsString(), of_a_newer_epd, second_hello.SerializeAsString()}) {
    epd_.SendBytes(bytes);
    const v1::FromWorker answer = epd_.Receive();
    EXPECT_THAT(answer.log().text(), HasSubstr("message")) << answer.ShortDebugString();
    EXPECT_EQ(answer.log().severity(), 2);
  }
  epd_.Send(without_descriptors);
  EXPECT_EQ(epd_.Receive().evict_session().session_id(), 9u);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, FakeSpec(1));
  EXPECT_NE(AnnounceAll(tenant, tenant.Announce(0)), 0u);
}

// Whatever there are no descriptors for, a session's or a group's, is refused to that one.
TEST_F(WorkerProcess, RunningOutOfDescriptorsEndsNoWorker) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a pipe to look at an object's type, and takes "
                  "it for a wrong one";
#endif
  constexpr uint32_t kRanks = 16;
  Sessions(kRanks);
  Snapshot();  // It has taken them, with their descriptors.
  rlimit before;
  ASSERT_EQ(prlimit(epd_.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  v1::ToWorker start;
  start.mutable_start_tenant()->set_epoch(1);
  start.mutable_start_tenant()->set_formation(1);
  *start.mutable_start_tenant()->mutable_spec() = FakeSpec(kRanks);
  start.mutable_start_tenant()->mutable_spec()->set_num_experts(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    v1::StartTenant::Member& member = *start.mutable_start_tenant()->add_members();
    member.set_rank(rank);
    member.set_session_id(rank + 1);
  }
  int num_refused = 0;
  int num_evicted = 0;
  for (rlim_t more = 0; more < 5 * kRanks; ++more) {
    const rlimit few = {24 + more, before.rlim_max};
    ASSERT_EQ(prlimit(epd_.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
    start.mutable_start_tenant()->set_group_id(100 + more);
    epd_.Send(start);
    const v1::FromWorker answer = epd_.Receive();
    const v1::TenantReady& ready = answer.tenant_ready();
    ASSERT_EQ(ready.group_id(), 100 + more) << answer.ShortDebugString();
    if (ready.status().code() != 0) {
      ++num_refused;
      EXPECT_EQ(ready.status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted))
          << ready.status().message();
    }
    FakeSession& late = epd_.AddSession(1000 + more);
    v1::ToWorker ask;
    ask.mutable_get_snapshot()->set_request_id(5);
    epd_.Send(ask);
    v1::FromWorker next = epd_.Receive();
    if (next.evict_session().session_id() == late.id()) {
      ++num_evicted;
      next = epd_.Receive();
    }
    ASSERT_EQ(next.snapshot().request_id(), 5u) << next.ShortDebugString();
    v1::ToWorker end;
    end.mutable_end_tenant()->set_group_id(100 + more);
    end.mutable_end_tenant()->set_formation(1);
    epd_.Send(end);
    v1::ToWorker dead;
    dead.mutable_session_dead()->set_session_id(late.id());
    epd_.Send(dead);
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_GT(num_evicted, 0);
}

TEST_F(WorkerProcess, ThePastOfManyRanksWithLongNamesFitsIntoOneMessage) {
  constexpr uint32_t kRanks = 33;
  constexpr uint32_t kCalls = 62;
  Sessions(kRanks);
  v1::GroupSpec spec = FakeSpec(kRanks);
  spec.set_num_experts(kRanks);
  FakeTenant tenant = StartFakeTenant(epd_, 7, 1, spec);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    shm::SlotRequest request = tenant.Announce(rank);
    request.has_name = 1;
    std::memset(request.announce.name, 0xff, sizeof request.announce.name);
    request.program[0] = static_cast<uint8_t>(rank);
    request.ordinal = request.occurrence = UINT32_MAX;
    for (uint32_t call = 0; call < kCalls; ++call) {
      request.execution = (uint64_t{1} << 61) + call;
      tenant.ranks[rank]->Arm(call, request);
    }
  }
  // The worker takes some of each session's submissions in a turn, and answers epd in between.
  v1::ToWorker ask;
  ask.mutable_get_past()->set_request_id(4);
  ask.mutable_get_past()->set_group_id(7);
  ask.mutable_get_past()->set_max_operations(64);
  v1::WorkerPast past;
  for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       past.operations_size() <= 1000 && std::chrono::steady_clock::now() < until;) {
    epd_.Send(ask);
    past = epd_.Receive().past();
  }
  EXPECT_EQ(Snapshot().operations_size(), 256);
  EXPECT_GT(past.operations_size(), 1000);
  EXPECT_EQ(past.request_id(), 4u);
}

TEST_F(WorkerProcess, MakesAUniqueIdAndReportsItsDigest) {
  v1::ToWorker ask;
  ask.mutable_make_unique_id()->set_group_id(7);
  ask.mutable_make_unique_id()->set_epoch(1);
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    epd_.Send(ask);
    const v1::UniqueIdMade made = epd_.Receive(nullptr, 30'000).unique_id_made();
    if (epd_.ready().nccl_version().empty()) {
      EXPECT_EQ(made.status().code(), static_cast<int>(absl::StatusCode::kUnavailable));
      EXPECT_THAT(made.status().message(), HasSubstr(epd_.ready().nccl_problem()));
      ASSERT_EQ(ProvidedNccl(), nullptr) << epd_.ready().nccl_problem();
      GTEST_SKIP() << "no libnccl on this machine: " << epd_.ready().nccl_problem();
    }
    ASSERT_EQ(made.status().code(), 0) << made.status().message();
    EXPECT_EQ(made.unique_id().size(), 128u);
    ids.push_back(made.unique_id());
  }
  EXPECT_NE(ids[0], ids[1]);

  v1::ToWorker init;
  init.mutable_init_communicator()->set_group_id(7);
  init.mutable_init_communicator()->set_epoch(1);
  init.mutable_init_communicator()->set_unique_id(ids[0]);
  epd_.Send(init);
  const v1::CommunicatorReady ready = epd_.Receive().communicator_ready();
  EXPECT_EQ(ready.status().code(), 0);
  EXPECT_EQ(ready.unique_id_sha256(), Sha256(ids[0]).value());
}

int NumDescriptors(pid_t process) {
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(process) + "/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

// NCCL leaves a listening socket behind in the process that makes an id.
TEST_F(WorkerProcess, ManyUniqueIdsLeaveNoDescriptorBehind) {
  if (epd_.ready().nccl_version().empty()) GTEST_SKIP() << epd_.ready().nccl_problem();
  v1::ToWorker ask;
  ask.mutable_make_unique_id()->set_group_id(7);
  std::vector<int>
      descriptors;  // After each id; before the first, the worker may still be setting up.
  for (int i = 0; i < 6; ++i) {
    ask.mutable_make_unique_id()->set_epoch(i + 1);
    epd_.Send(ask);
    ASSERT_EQ(epd_.Receive(nullptr, 30'000).unique_id_made().status().code(), 0);
    descriptors.push_back(NumDescriptors(epd_.ready().pid()));
  }
  EXPECT_EQ(descriptors.back(), descriptors.front());
}

TEST(WorkerProgram, SaysHowItIsStarted) {
  FILE* output = popen("daemon/worker/epd-worker 2>&1", "r");
  ASSERT_NE(output, nullptr);
  char text[256] = {};
  const size_t length = fread(text, 1, sizeof text - 1, output);
  const int status = pclose(output);
  EXPECT_THAT(std::string(text, length), HasSubstr("--control-fd"));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace epd
