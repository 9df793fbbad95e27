// Goal: what programs take is counted as it is, is small, and ends where it is allowed to end; ending a generation costs the
// same however many there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "absl/time/clock.h"
#include "daemon/worker/engine/execution_history.h"

namespace {
size_t g_allocated = 0;
}  // namespace

// Not inlined: the compiler would take malloc for another allocator's.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  g_allocated += malloc_usable_size(memory) + sizeof(size_t);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) g_allocated -= malloc_usable_size(memory) + sizeof(size_t);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace epd {
namespace {

ProgramId Program(uint32_t n) {
  return {static_cast<uint8_t>(n), static_cast<uint8_t>(n >> 8), static_cast<uint8_t>(n >> 16), 1};
}

struct PerProgram {
  size_t allocated = 0;
  size_t counted = 0;
};

// Of programs that all ranks run, one of them an execution ahead.
PerProgram Measure(uint32_t num_ranks) {
  constexpr uint32_t kPrograms = 500;
  const size_t before = g_allocated;
  const auto history =
      std::make_unique<ExecutionHistory>(num_ranks, std::vector<ExecutionBase>(), absl::Status());
  const size_t empty = history->bytes();
  for (uint32_t n = 0; n < kPrograms; ++n) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank)
      EXPECT_TRUE(history->Enter(Rank(rank), Program(n), false, rank == 0 ? 1 : 0).ok());
  }
  return {(g_allocated - before) / kPrograms, (history->bytes() - empty) / kPrograms};
}

TEST(ExecutionHistoryBytesTest, AProgramIsCountedAsItIs) {
  for (const uint32_t num_ranks : {2u, 240u, 2048u}) {
    const PerProgram one = Measure(num_ranks);
    std::printf("%u ranks: %zu bytes a program, %zu counted\n", num_ranks, one.allocated,
                one.counted);
    EXPECT_GE(one.counted, one.allocated * 9 / 10) << num_ranks;
    EXPECT_LE(one.counted, one.allocated * 11 / 10) << num_ranks;
    EXPECT_LE(one.allocated, 300 + num_ranks) << num_ranks << ": a byte of each rank";
  }
}

// Of one rank's next 2,000 executions, in CPU time: a machine with other load, or a sanitizer, makes both that are compared slow.
double MillisecondsOfExecutions(ExecutionHistory& history, uint64_t& next) {
  const auto now = [] {
    timespec spent = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return absl::DurationFromTimespec(spent);
  };
  const absl::Duration before = now();
  for (int i = 0; i < 2000; ++i)
    EXPECT_TRUE(history.Enter(Rank(0), Program(1), false, next++).ok());
  return absl::ToDoubleMilliseconds(now() - before);
}

// One rank never comes, and another one goes on.
TEST(ExecutionHistoryBytesTest, ARankLooksOnceAtFailuresThatItHasPassed) {
  ExecutionHistory history(2, {}, absl::Status());
  uint64_t next = 0;
  for (; next < kMaxFailedExecutions; ++next) {
    ASSERT_TRUE(history.Enter(Rank(0), Program(1), false, next).ok());
    ASSERT_TRUE(history.Fail({.program = Program(1), .number = next}, absl::AbortedError("lost"),
                             {true, true}));
  }
  ExecutionHistory without_failures(2, {}, absl::Status());
  uint64_t next_without = 0;
  const double alone = MillisecondsOfExecutions(without_failures, next_without);
  const double behind = MillisecondsOfExecutions(history, next);
  std::printf("2,000 executions: %.3f ms, behind 4,096 failures %.3f ms\n", alone, behind);
  EXPECT_LE(behind, 10 * alone);
  EXPECT_EQ(history.num_failed_remembered(), kMaxFailedExecutions);
  EXPECT_EQ(history.Enter(Rank(1), Program(1), false, 5).status(), absl::AbortedError("lost"));
  ASSERT_TRUE(history.Enter(Rank(1), Program(1), false, next).ok());
  EXPECT_EQ(history.num_failed_remembered(), 0u);
}

TEST(ExecutionHistoryBytesTest, TheEndOfAGenerationTouchesNoProgram) {
  ExecutionHistory history(2, {}, absl::Status());
  for (uint32_t n = 0; n < kMaxPrograms; ++n)
    ASSERT_TRUE(history.Enter(Rank(0), Program(n), false, 0).ok());
  const size_t allocated = g_allocated;
  const absl::Time began = absl::Now();
  history.EndGeneration(absl::AbortedError("late"));
  history.EndDivergedGeneration(absl::AbortedError("late"));
  std::printf("two ends: %.3f ms\n", absl::ToDoubleMilliseconds(absl::Now() - began));
  EXPECT_LE(g_allocated - allocated, 4096u);
}

}  // namespace
}  // namespace epd
