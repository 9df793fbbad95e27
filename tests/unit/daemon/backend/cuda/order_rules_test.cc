// Goal: the fake driver notices every broken rule of order, so that a test which finds none broken has
// shown something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OrderRules : public ::testing::Test {
 protected:
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
  const AllocationProperties properties = {.type = kAllocationPinned,
                                           .requested_handle_types = kHandlePosixDescriptor,
                                           .location = {kLocationDevice, 0},
                                           .win32_handle_metadata = nullptr,
                                           .flags = {}};
  MemoryHandle handle = 0;
  const size_t bytes = FakeDriver::kGranularity;
  ASSERT_EQ(t.memory_create(&handle, bytes, &properties, 0), kSuccess);
  ASSERT_EQ(t.address_reserve(&memory, bytes, 0, 0, 0), kSuccess);
  ASSERT_EQ(t.memory_map(memory, bytes, 0, handle, 0), kSuccess);
  EXPECT_EQ(t.address_free(memory, bytes), kInvalidValue);
  EXPECT_THAT(driver.violations(), ElementsAre("cuMemAddressFree: the range is still mapped"));
  EXPECT_EQ(driver.Leaks(),
            "1 handle, 1 mapping, 1 address range, 1 registered page, 1 stream, "
            "1 context");
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
