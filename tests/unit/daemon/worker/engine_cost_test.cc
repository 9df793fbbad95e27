// Goal: what a session that goes, or a call that fails, costs the worker does not grow with the operations and the ended
// groups of others: a client that does either in a loop would stop everybody's calls.
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <cstdlib>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/exchange.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace {
size_t g_num_allocated = 0;
size_t g_bytes = 0;  // Not given back yet.
}  // namespace

// Not inlined: the compiler would take malloc for another allocator's.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  ++g_num_allocated;
  g_bytes += malloc_usable_size(memory);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) g_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace epd {
namespace {

constexpr uint32_t kRanks = 1024;
constexpr uint32_t kSessions = 16;
constexpr uint64_t kStrangers = 500;

// Of this thread: others of the machine do not count.
double CpuMs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// One engine whose groups have kRanks ranks of kSessions sessions of one user.
class EngineCostTest : public ::testing::Test {
 protected:
  EngineCostTest() {
    for (uint64_t s = 1; s <= kSessions; ++s) exchange_.AddSession(SessionId(s));
  }
  static SessionId SessionOf(uint32_t rank) { return SessionId(1 + rank / (kRanks / kSessions)); }
  void StartTenant(GroupId group, uint32_t num_ranks = kRanks) {
    TenantStart start{.group = group,
                      .epoch = Epoch(3),
                      .formation = Formation(1),
                      .spec = MakeSpec(num_ranks),
                      .members = {},
                      .bases = {},
                      .base_cause = absl::AbortedError("before")};
    for (uint32_t r = 0; r < num_ranks; ++r) {
      start.members.push_back(MakeMember(r, SessionOf(r)));
      start.members.back().client_name = "train.py, whose name is long";
      // Each group has arenas of its own.
      start.members.back().arena_index = static_cast<uint32_t>(group.value) * kRanks + r;
    }
    ASSERT_TRUE(exchange_.StartTenant(std::move(start), now_).ok());
    exchange_.TakeEffects();
  }
  void EndTenant(GroupId group) {
    exchange_.EndTenant(group, Formation(1), absl::AbortedError("left"), now_);
    exchange_.TakeEffects();
  }
  // Of the last call.
  absl::Status StatusOfLate(const shm::SlotRequest& request, SessionId session) {
    exchange_.Take({.session = session, .slot = 0, .claim = ++claim_}, request, now_);
    for (const Effect& effect : exchange_.TakeEffects()) {
      if (const auto* answer = std::get_if<AnswerSubmission>(&effect)) return answer->status;
    }
    return absl::UnknownError("no answer");
  }
  void Take(const shm::SlotRequest& request) {
    exchange_.Take({.session = SessionOf(request.rank), .slot = 0, .claim = ++claim_}, request,
                   now_);
    exchange_.TakeEffects();
  }
  // Far less than looking at every rank of every operation or group takes, with room for a slow machine.
  void ExpectStrangersCostLittle(const std::string& beside) {
    const double began = CpuMs();
    for (uint64_t s = 0; s < kStrangers; ++s) {
      const SessionId stranger(1000 + s);
      exchange_.AddSession(stranger);
      exchange_.SessionDead(stranger, absl::UnavailableError("closed"), /*process_alive=*/true,
                            now_);
      exchange_.SessionDead(stranger, absl::UnavailableError("closed"), /*process_alive=*/false,
                            now_);
    }
    const double ms = CpuMs() - began;
    std::printf("%d sessions that came and went beside %s: %.3f ms\n", static_cast<int>(kStrangers),
                beside.c_str(), ms);
    EXPECT_LE(ms, 40);
  }

  Exchange exchange_{{.staging_bytes = uint64_t{1} << 30}};
  const absl::Time now_ = absl::UnixEpoch();
  uint32_t claim_ = 0;
};

TEST_F(EngineCostTest, ASessionThatIsInNothingLeavesOperationsAlone) {
  StartTenant(kGroup);
  for (uint32_t i = 0; i < 512; ++i)
    Take(MakePrepare({.rank = i % kSessions * (kRanks / kSessions), .execution = i}));
  ASSERT_EQ(exchange_.num_open_operations(), 512u);
  ExpectStrangersCostLittle("512 operations of 1,024 ranks that gather");
}

TEST_F(EngineCostTest, ASessionThatIsInNothingLeavesEndedGroupsAlone) {
  for (uint64_t group = 1; group <= 100; ++group) {
    StartTenant(GroupId(group));
    EndTenant(GroupId(group));
  }
  ExpectStrangersCostLittle("100 ended groups of 1,024 ranks");
}

// 4,096 of them are remembered.
TEST_F(EngineCostTest, OfAnEndedGroupIsKeptWhatALateCallIsTold) {
  constexpr uint64_t kFirst = 100;
  constexpr uint64_t kLast = 300;
  size_t before = 0;
  for (uint64_t group = 1; group <= kLast; ++group) {
    StartTenant(GroupId(group));
    EndTenant(GroupId(group));
    if (group == kFirst) before = g_bytes;
  }
  const size_t of_each = (g_bytes - before) / (kLast - kFirst);
  std::printf("an ended group of 1,024 ranks: %zu bytes, %zu a rank\n", of_each, of_each / kRanks);
  EXPECT_LE(of_each / kRanks, 32u);

  const shm::SlotRequest late = MakePrepare({.group = GroupId(1), .rank = 7});
  const std::string why(StatusOfLate(late, SessionOf(7)).message());
  EXPECT_NE(why.find("left"), std::string::npos) << why;
  EXPECT_NE(why.find(MakeSpec(kRanks).name), std::string::npos) << why;
  const absl::Status of_other = StatusOfLate(late, SessionOf(kRanks - 1));
  EXPECT_EQ(of_other.code(), absl::StatusCode::kPermissionDenied) << of_other;
  exchange_.Stop("the test ends", now_);
}

TEST_F(EngineCostTest, AGroupThatEndsLooksAtFewThatEndedBefore) {
  constexpr uint64_t kMany = 1000;
  constexpr uint64_t kBefore = 4000;
  uint64_t group = 0;
  const auto form_and_end = [&](uint64_t num_groups) {
    const double began = CpuMs();
    for (uint64_t i = 0; i < num_groups; ++i) {
      StartTenant(GroupId(++group), 1);
      EndTenant(GroupId(group));
    }
    return CpuMs() - began;
  };
  const double first = form_and_end(kMany);
  form_and_end(kBefore - kMany);
  const double last = form_and_end(kMany);
  std::printf("1,000 groups that formed and ended: %.3f ms, and beside 4,000 that had: %.3f ms\n",
              first, last);
  EXPECT_LE(last, 3 * first + 1);
}

TEST_F(EngineCostTest, ASessionThatIsInNothingLeavesArenasOfOthersAlone) {
  for (uint64_t group = 1; group <= 100; ++group) StartTenant(GroupId(group));
  ExpectStrangersCostLittle("100 groups of 1,024 ranks");
}

TEST_F(EngineCostTest, ASessionThatIsInSomethingEndsIt) {
  StartTenant(kGroup);
  Take(MakePrepare({.rank = 0, .execution = 0}));
  exchange_.SessionDead(SessionOf(0), absl::UnavailableError("killed"), false, now_);
  EXPECT_EQ(exchange_.num_open_operations(), 0u);
}

TEST_F(EngineCostTest, ACallThatFailsAllocatesNothingForEachRank) {
  StartTenant(kGroup);
  for (uint64_t execution = 0; execution < 64; ++execution)
    Take(MakePrepare({.rank = 0, .execution = execution}));
  shm::SlotRequest failing = MakePrepare({.rank = 0, .execution = 100});
  failing.error_code = static_cast<uint32_t>(absl::StatusCode::kInvalidArgument);
  const double began = CpuMs();
  const size_t allocated = g_num_allocated;
  Take(failing);
  std::printf("a call that fails, of 1,024 ranks: %zu allocations, %.3f ms\n",
              g_num_allocated - allocated, CpuMs() - began);
  EXPECT_LE(g_num_allocated - allocated, kRanks / 4);
  EXPECT_EQ(exchange_.num_open_operations(), 64u);
}

}  // namespace
}  // namespace epd
