// Goal: the fake driver notices every broken rule of order and of access, and refuses what a driver does, so that a test which
// finds none broken has shown something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OrderRules : public ::testing::Test {
 protected:
  explicit OrderRules(FakeMachine machine = {}) : driver(std::move(machine)) {}
  void SetUp() override {
    ASSERT_EQ(t.init(0), kSuccess);
    ASSERT_EQ(t.primary_context_retain(&context, 0), kSuccess);
    ASSERT_EQ(t.context_set_current(context), kSuccess);
    ASSERT_EQ(t.stream_create(&stream, kStreamNonBlocking), kSuccess);
    ASSERT_EQ(t.host_register(&word, sizeof word, kHostRegisterDeviceMap), kSuccess);
  }

  // Leaves a wait in the stream that ends once `word` is 1.
  void WaitForWord() {
    BatchedOperation wait = {};
    wait.value = {.operation = kWaitValue32,
                  .address = reinterpret_cast<DevicePointer>(&word),
                  .value = 1,
                  .flags = kWaitGreaterOrEqual,
                  .alias = 0};
    ASSERT_EQ(t.stream_batch(stream, 1, &wait, 0), kSuccess);
  }

  // Memory of a device, mapped at `memory` for nobody yet.
  MemoryHandle Map(int device) {
    const AllocationProperties properties = {.type = kAllocationPinned,
                                             .requested_handle_types = kHandlePosixDescriptor,
                                             .location = {kLocationDevice, device},
                                             .win32_handle_metadata = nullptr,
                                             .flags = {}};
    MemoryHandle handle = 0;
    EXPECT_EQ(t.memory_create(&handle, kBytes, &properties, 0), kSuccess);
    MapAt(handle);
    return handle;
  }
  void MapAt(MemoryHandle handle) {
    EXPECT_EQ(t.address_reserve(&memory, kBytes, 0, 0, 0), kSuccess);
    EXPECT_EQ(t.memory_map(memory, kBytes, 0, handle, 0), kSuccess);
  }
  Result Allow(int device, int flags) {
    const AccessDescription access = {.location = {kLocationDevice, device}, .flags = flags};
    return t.memory_set_access(memory, kBytes, &access, 1);
  }

  static constexpr size_t kBytes = FakeDriver::kGranularity;
  FakeDriver driver;
  const DriverTable& t = driver.table();
  Context context = nullptr;
  Stream stream = nullptr;
  uint32_t word = 0;
  DevicePointer memory = 0;
};

TEST_F(OrderRules, AnAllocationBehindAPendingWaitIsSeen) {
  WaitForWord();
  ASSERT_EQ(t.memory_allocate(&memory, 4096), kSuccess);
  EXPECT_THAT(driver.violations(), ElementsAre("cuMemAlloc: behind 1 pending wait"));
}

TEST_F(OrderRules, AnAllocationAfterTheWaitHasEndedIsFine) {
  WaitForWord();
  std::atomic_ref(word).store(1);
  ASSERT_EQ(t.memory_allocate(&memory, 4096), kSuccess);
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(OrderRules, MemoryThatIsTakenFromABusyStreamIsSeen) {
  ASSERT_EQ(t.memory_allocate(&memory, 4096), kSuccess);
  WaitForWord();
  ASSERT_EQ(t.fill_async(memory, 1, 4096, stream), kSuccess);
  ASSERT_EQ(t.memory_free(memory), kSuccess);
  EXPECT_THAT(driver.violations(),
              ElementsAre("cuMemFree: behind 1 pending wait", "cuMemFree: 1 stream has work left"));
}

TEST_F(OrderRules, AStreamThatIsDestroyedWithWorkLeftIsSeen) {
  WaitForWord();
  ASSERT_EQ(t.stream_destroy(stream), kSuccess);
  EXPECT_THAT(driver.violations(), ElementsAre("cuStreamDestroy: it has work left"));
}

TEST_F(OrderRules, ALastErrorThatIsLeftAfterAFailedIpcHandleIsSeen) {
  IpcHandle handle;
  EXPECT_NE(t.ipc_get_handle(&handle, 12345), kSuccess);
  ASSERT_EQ(t.stream_query(stream), kSuccess);
  EXPECT_THAT(driver.violations(),
              ElementsAre("cuStreamQuery: the last error of a failed IPC call was not taken"));
}

TEST_F(OrderRules, ALastErrorThatIsTakenIsFine) {
  IpcHandle handle;
  EXPECT_NE(t.ipc_get_handle(&handle, 12345), kSuccess);
  EXPECT_NE(t.runtime_take_last_error(), kSuccess);
  ASSERT_EQ(t.stream_query(stream), kSuccess);
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(OrderRules, ARangeThatIsFreedWhileItIsMappedIsSeen) {
  Map(0);
  EXPECT_EQ(t.address_free(memory, kBytes), kInvalidValue);
  EXPECT_THAT(driver.violations(), ElementsAre("cuMemAddressFree: the range is still mapped"));
  EXPECT_EQ(driver.Leaks(),
            "1 handle, 1 mapping, 1 address range, 1 registered page, 1 stream, "
            "1 context");
}

TEST_F(OrderRules, ALaunchHasTheSharedMemoryThatItsFunctionWasGivenAndNoMore) {
  int num_runs = 0;
  driver.SetKernel("kernel", [&num_runs](void**) { ++num_runs; });
  Module module = nullptr;
  Function function = nullptr;
  ASSERT_EQ(t.module_load(&module, "image"), kSuccess);
  ASSERT_EQ(t.module_get_function(&function, module, "kernel"), kSuccess);
  const auto launch = [&](unsigned shared_bytes) {
    return t.launch_kernel(function, 1, 1, 1, 32, 1, 1, shared_bytes, stream, nullptr, nullptr);
  };
  const auto give = [&](int bytes) {
    return t.function_set_attribute(function, kFunctionMaxDynamicSharedBytes, bytes);
  };
  EXPECT_EQ(launch(48 << 10), kSuccess);
  EXPECT_EQ(launch((48 << 10) + 1), kInvalidValue);
  EXPECT_EQ(give((227 << 10) + 1), kInvalidValue) << "as much as a block has";
  EXPECT_EQ(give(100 << 10), kSuccess);
  EXPECT_EQ(launch(100 << 10), kSuccess);
  EXPECT_EQ(launch((100 << 10) + 1), kInvalidValue);
  EXPECT_EQ(num_runs, 2);
}

// Device 0 does not reach device 1.
class OrderRulesOfTwo : public OrderRules {
 protected:
  OrderRulesOfTwo() : OrderRules({.num_devices = 3, .no_peer_access = {{0, 1}}}) {}

  // As a worker maps what another one has told it of.
  void Import(MemoryHandle of_other) {
    int fd = -1;
    ASSERT_EQ(t.memory_export(&fd, of_other, kHandlePosixDescriptor, 0), kSuccess);
    void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    MemoryHandle imported = 0;
    ASSERT_EQ(t.memory_import(&imported, shareable, kHandlePosixDescriptor), kSuccess);
    close(fd);
    MapAt(imported);
  }
  void Write() const { *reinterpret_cast<volatile char*>(memory) = 1; }
  char Read() const { return *reinterpret_cast<const volatile char*>(memory); }
};

TEST_F(OrderRulesOfTwo, MemoryThatADeviceDoesNotReachIsRefusedToIt) {
  Map(1);
  EXPECT_EQ(Allow(0, kAccessRead), kInvalidDevice);
  EXPECT_EQ(Allow(0, kAccessReadWrite), kInvalidDevice);
  EXPECT_EQ(Allow(1, kAccessReadWrite), kSuccess);
  EXPECT_EQ(Allow(2, kAccessRead), kSuccess);
  EXPECT_EQ(Allow(2, kAccessRead | 4), kInvalidValue);
}

TEST_F(OrderRulesOfTwo, WhatMayOnlyBeReadIsNotWritten) {
  Import(Map(2));
  ASSERT_EQ(Allow(0, kAccessRead), kSuccess);
  EXPECT_EQ(Read(), 0);
  EXPECT_DEATH(Write(), "");
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(OrderRulesOfTwo, AnotherWorkersMemoryThatCouldBeWrittenIsSeen) {
  const MemoryHandle other = Map(2);
  Import(other);
  ASSERT_EQ(Allow(0, kAccessReadWrite), kSuccess);
  Write();
  EXPECT_THAT(driver.violations(),
              ElementsAre("cuMemSetAccess: memory of another worker could be written"));
  // A client of a device, and its worker.
  Import(other);
  ASSERT_EQ(Allow(2, kAccessReadWrite), kSuccess);
  Write();
  EXPECT_EQ(driver.violations().size(), 1u);
}

TEST_F(OrderRules, ACallFailsOnCommandAndOnlyThen) {
  driver.Fail("cuMemAlloc", kOutOfMemory, /*skip=*/1);
  ASSERT_EQ(t.memory_allocate(&memory, 4096), kSuccess);
  DevicePointer second = 0;
  EXPECT_EQ(t.memory_allocate(&second, 4096), kOutOfMemory);
  EXPECT_EQ(t.memory_allocate(&second, 4096), kSuccess);
  EXPECT_EQ(driver.CountCalls("cuMemAlloc"), 3);
}

}  // namespace
}  // namespace epd::cuda
