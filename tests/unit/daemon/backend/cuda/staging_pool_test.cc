// Goal: a device's staging is reserved whole and handed out in both ways of sharing; every failure of
// the driver is an error that leaves nothing behind, and nothing is made or taken away while a stream
// works.
#include "daemon/backend/cuda/staging/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/backend/cuda/device/device_trials.h"
#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kPage = FakeDriver::kGranularity;

// A driver with a context and a stream; everything is checked at the end.
class World {
 public:
  explicit World(FakeMachine machine = {}) : driver(machine) {
    EXPECT_EQ(driver.table().init(0), kSuccess);
    context = std::make_unique<ContextTrial>(driver.table(), 0);
    streams = std::make_unique<DeviceStreams>(*DeviceStreams::Create(driver.table(), 1));
  }
  ~World() {
    streams.reset();
    context.reset();
    EXPECT_EQ(driver.Leaks(), "");
    EXPECT_THAT(driver.violations(), IsEmpty());
  }

  absl::StatusOr<std::unique_ptr<CudaStagingPool>> Pool(
      uint64_t budget, SharingChoice sharing = SharingChoice::kAuto) {
    return CudaStagingPool::Create(driver.table(), *streams,
                                   {.device = 0, .budget_bytes = budget, .sharing = sharing});
  }

  FakeDriver driver;
  std::unique_ptr<ContextTrial> context;
  std::unique_ptr<DeviceStreams> streams;
};

TEST(StagingForNetworkCards, IsAskedForWhereTheDeviceOffersIt) {
  World capable({.rdma = true});
  const auto pool = capable.Pool(4 * kPage, SharingChoice::kDescriptor);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(capable.driver.rdma_bytes(), capable.driver.used_bytes() + kPage) << "the trial's, too";
}

TEST(StagingForNetworkCards, IsTriedAsItIsUsed) {
  World broken({.rdma = true, .rdma_memory = false});
  EXPECT_THAT(TryVirtualMemory(broken.driver.table(), 0), HasSubstr("cuMemCreate"));
  const auto pool = broken.Pool(4 * kPage);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->sharing(), Sharing::kIpcHandle);
  const auto asked = broken.Pool(4 * kPage, SharingChoice::kDescriptor);
  EXPECT_EQ(asked.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(asked.status().message()), HasSubstr("staging=vmm does not work"));
}

class BothWays : public ::testing::TestWithParam<SharingChoice> {};
INSTANTIATE_TEST_SUITE_P(Sharing, BothWays,
                         ::testing::Values(SharingChoice::kDescriptor, SharingChoice::kIpcHandle));

TEST_P(BothWays, TheBudgetIsTakenFromTheDeviceAtOnceAndNoMoreLater) {
  World world;
  auto pool = world.Pool(8 * kPage - 1, GetParam());
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->budget_bytes(), 8 * kPage);
  EXPECT_EQ(world.driver.used_bytes(), 8 * kPage);
  const auto first = (*pool)->Take(kPage + 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*pool)->arena_bytes(), 2 * kPage);
  EXPECT_EQ((*pool)->reserved_bytes(), 6 * kPage);
  EXPECT_EQ(world.driver.used_bytes(), 8 * kPage);
  const auto rest = (*pool)->Take(6 * kPage);
  ASSERT_TRUE(rest.ok()) << rest.status();
  const auto more = (*pool)->Take(1);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("0 of 16777216 bytes"));
  EXPECT_TRUE((*pool)->GiveBack(*first).ok());
  EXPECT_EQ((*pool)->reserved_bytes(), 2 * kPage);
  EXPECT_EQ(world.driver.used_bytes(), 8 * kPage);
  EXPECT_EQ((*pool)->GiveBack(*first).code(), absl::StatusCode::kNotFound);
}

// A client's process: maps what it was sent, writes 77 into the second byte, and returns the first.
int InAnotherProcess(const DriverTable& driver, const SharedArena& shared, Sharing sharing) {
  const pid_t child = fork();
  if (child == 0) {
    void* mapped = nullptr;
    DevicePointer address = 0;
    if (sharing == Sharing::kDescriptor) {
      mapped = mmap(nullptr, shared.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd.get(), 0);
    } else if (driver.ipc_open_handle(&address, shared.handle, kIpcLazyPeerAccess) == kSuccess) {
      mapped = reinterpret_cast<void*>(address);
    }
    if (mapped == nullptr || mapped == MAP_FAILED) _exit(255);
    static_cast<char*>(mapped)[1] = 77;
    _exit(static_cast<char*>(mapped)[0]);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(BothWays, AnArenaIsZeroedAndAnotherProcessSharesItsBytes) {
  World world;
  auto pool = world.Pool(4 * kPage, GetParam());
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto arena = (*pool)->Take(kPage);
  ASSERT_TRUE(arena.ok()) << arena.status();
  ASSERT_EQ(world.driver.RunStreams(), 0);
  auto* const bytes = reinterpret_cast<char*>(*arena);
  EXPECT_EQ(bytes[0], 0);
  bytes[0] = 42;
  const auto shared = (*pool)->Share(*arena);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->bytes, kPage);
  EXPECT_EQ(InAnotherProcess(world.driver.table(), *shared, (*pool)->sharing()), 42);
  EXPECT_EQ(bytes[1], 77);
}

TEST(CudaStagingPool, WhoMapsADescriptorKeepsTheMemoryWhenThePoolIsGone) {
  World world;
  auto pool = world.Pool(4 * kPage, SharingChoice::kDescriptor);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto arena = (*pool)->Take(kPage);
  ASSERT_TRUE(arena.ok()) << arena.status();
  ASSERT_EQ(world.driver.RunStreams(), 0);
  *reinterpret_cast<char*>(*arena) = 42;
  const auto shared = (*pool)->Share(*arena);
  ASSERT_TRUE(shared.ok()) << shared.status();
  pool->reset();
  EXPECT_EQ(InAnotherProcess(world.driver.table(), *shared, Sharing::kDescriptor), 42);
}

TEST(CudaStagingPool, AutoTakesDescriptorsAndHandlesWhereThereAreNone) {
  {
    World world;
    auto pool = world.Pool(kPage);
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_EQ((*pool)->sharing(), Sharing::kDescriptor);
  }
  World world({.virtual_memory = false});
  auto pool = world.Pool(kPage);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->sharing(), Sharing::kIpcHandle);
}

TEST(CudaStagingPool, WhatIsForcedAndDoesNotWorkIsAnErrorAndNeverTheOther) {
  World no_vmm({.virtual_memory = false});
  const auto forced = no_vmm.Pool(kPage, SharingChoice::kDescriptor);
  EXPECT_EQ(forced.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(forced.status().message()),
              HasSubstr("staging=vmm does not work on this device: "
                        "cuMemGetAllocationGranularity: CUDA_ERROR_NOT_SUPPORTED (801)"));
}

TEST(CudaStagingPool, NoWayAtAllNamesBothReasons) {
  World world({.posix_descriptors = false, .legacy_ipc = false});
  const auto pool = world.Pool(kPage);
  EXPECT_THAT(std::string(pool.status().message()),
              HasSubstr("cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801); cuIpcGetMemHandle: "
                        "CUDA_ERROR_NOT_SUPPORTED (801)"));
  const auto ipc = world.Pool(kPage, SharingChoice::kIpcHandle);
  EXPECT_EQ(ipc.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaStagingPool, ADeviceThatIsTooFullIsAnErrorThatSaysWhatToDo) {
  World world({.device_bytes = 8 * kPage});
  const auto pool = world.Pool(16 * kPage);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pool.status().message()), HasSubstr("XLA_PYTHON_CLIENT_MEM_FRACTION"));
}

TEST_P(BothWays, NothingIsMadeOrTakenAwayWhileAStreamWorks) {
  World world;
  auto pool = world.Pool(4 * kPage, GetParam());
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto arena = (*pool)->Take(kPage);
  ASSERT_TRUE(arena.ok()) << arena.status();
  uint32_t word = 0;
  BatchedOperation wait = {};
  wait.value = {kWaitValue32, reinterpret_cast<DevicePointer>(&word), 1, kWaitGreaterOrEqual, 0};
  ASSERT_EQ(world.driver.table().stream_batch(world.streams->at(0), 1, &wait, 0), kSuccess);
  const size_t calls = world.driver.calls().size();
  EXPECT_EQ((*pool)->Take(kPage).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*pool)->GiveBack(*arena).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world.driver.calls().size(), calls + 2) << "only the stream was asked";
  std::atomic_ref(word).store(1);
  EXPECT_TRUE((*pool)->GiveBack(*arena).ok());
}

TEST_P(BothWays, APoolThatEndsUnderAPendingWaitLeavesTheMemoryToTheProcess) {
  FakeDriver driver;
  ASSERT_EQ(driver.table().init(0), kSuccess);
  ContextTrial context(driver.table(), 0);
  context.Abandon();
  uint32_t word = 0;
  {
    absl::StatusOr<DeviceStreams> streams = DeviceStreams::Create(driver.table(), 1);
    ASSERT_TRUE(streams.ok());
    auto pool = CudaStagingPool::Create(
        driver.table(), *streams, {.device = 0, .budget_bytes = kPage, .sharing = GetParam()});
    ASSERT_TRUE(pool.ok()) << pool.status();
    BatchedOperation wait = {};
    wait.value = {kWaitValue32, reinterpret_cast<DevicePointer>(&word), 1, kWaitGreaterOrEqual, 0};
    ASSERT_EQ(driver.table().stream_batch(streams->at(0), 1, &wait, 0), kSuccess);
  }
  EXPECT_THAT(driver.violations(), IsEmpty());
  EXPECT_EQ(driver.used_bytes(), kPage);
}

// Every call of making, sharing and giving back fails once, at its first, second and third time.
TEST_P(BothWays, EachCallMayFailAndNothingLeaks) {
  int num_failures = 0;
  for (const char* call : {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAlloc",
                           "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
                           "cuMemSetAccess", "cuMemsetD8Async", "cuIpcGetMemHandle"}) {
    for (int skip = 0; skip < 4; ++skip) {
      World world;
      world.driver.Fail(call, kOutOfMemory, skip);
      auto pool = world.Pool(4 * kPage, GetParam());
      if (!pool.ok()) {
        ++num_failures;
        continue;
      }
      const auto arena = (*pool)->Take(2 * kPage);
      if (!arena.ok()) {
        ++num_failures;
        EXPECT_EQ((*pool)->arena_bytes(), 0u) << call;
        const auto again = (*pool)->Take(2 * kPage);
        ASSERT_TRUE(again.ok()) << call << ": " << again.status();
        continue;
      }
      if ((*pool)->Share(*arena).ok()) continue;
      ++num_failures;
      EXPECT_TRUE((*pool)->Share(*arena).ok()) << call;
    }
  }
  EXPECT_GE(num_failures, 6);
}

TEST(CudaStagingPool, AReserveThatSomebodyTookIsToppedUpLater) {
  World world;
  auto pool = world.Pool(4 * kPage);
  ASSERT_TRUE(pool.ok()) << pool.status();
  // The trial at the start, the reserve, the arena; then the smaller reserve fails.
  world.driver.Fail("cuMemCreate", kOutOfMemory, /*skip=*/1);
  const auto arena = (*pool)->Take(kPage);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*pool)->reserved_bytes(), 0u);
  EXPECT_TRUE((*pool)->GiveBack(*arena).ok());
  EXPECT_EQ((*pool)->reserved_bytes(), 4 * kPage);
}

TEST(ClientMemoryFraction, IsWhatStagingAndContextsLeave) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  EXPECT_DOUBLE_EQ(ClientMemoryFraction(80 * kGib, 8 * kGib, 1), 0.88);
  EXPECT_DOUBLE_EQ(ClientMemoryFraction(80 * kGib, 8 * kGib, 2), 0.44);
  EXPECT_DOUBLE_EQ(ClientMemoryFraction(80 * kGib, 80 * kGib, 1), 0);
  EXPECT_DOUBLE_EQ(ClientMemoryFraction(0, 0, 1), 0);
  EXPECT_DOUBLE_EQ(ClientMemoryFraction(80 * kGib, 0, 0), 0);
}

}  // namespace
}  // namespace epd::cuda
