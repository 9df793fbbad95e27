// Goal: what was put into a device's streams is known to be complete only when it is; a device that
// fails or is late is said once and for all, and nothing is made while work is open.
#include "daemon/backend/cuda/device/device_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "daemon/backend/cuda/device/device_trials.h"
#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLimit = absl::Seconds(30);

class DeviceWorkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    driver.SetKernel("add_one", [this](void**) { ++launches; });
    ASSERT_EQ(t.init(0), kSuccess);
    context = std::make_unique<ContextTrial>(t, 0);
    Module module = nullptr;
    ASSERT_EQ(t.module_load(&module, "image"), kSuccess);
    ASSERT_EQ(t.module_get_function(&kernel, module, "add_one"), kSuccess);
    absl::StatusOr<DeviceStreams> made = DeviceStreams::Create(t, 2);
    ASSERT_TRUE(made.ok());
    streams = std::make_unique<DeviceStreams>(*std::move(made));
    absl::StatusOr<DeviceWork> created =
        DeviceWork::Create(t, *streams, {.max_open = 3, .limit = kLimit});
    ASSERT_TRUE(created.ok());
    work = std::make_unique<DeviceWork>(*std::move(created));
  }
  // Launches the kernel behind a wait for `gate`.
  std::function<Result(Stream)> Gated() {
    return [this](Stream stream) {
      BatchedOperation wait = {};
      wait.value = {kWaitValue32, reinterpret_cast<DevicePointer>(&gate), 1, kWaitGreaterOrEqual,
                    0};
      if (const Result code = t.stream_batch(stream, 1, &wait, 0); code != kSuccess) return code;
      return Launch(stream);
    };
  }
  std::function<Result(Stream)> Free() {
    return [this](Stream stream) { return Launch(stream); };
  }
  Result Launch(Stream stream) {
    return t.launch_kernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
  }
  std::vector<WorkId> Complete() {
    const auto complete = work->Poll(now);
    EXPECT_TRUE(complete.ok()) << complete.status();
    return complete.value_or(std::vector<WorkId>{});
  }

  FakeDriver driver;
  const DriverTable& t = driver.table();
  std::unique_ptr<ContextTrial> context;
  Function kernel = nullptr;
  std::unique_ptr<DeviceStreams> streams;
  std::unique_ptr<DeviceWork> work;
  absl::Time now = absl::UnixEpoch();
  uint32_t gate = 0;
  int launches = 0;
};

TEST_F(DeviceWorkTest, WorkIsCompleteWhenItIsAndInTheOrderOfItsStream) {
  ASSERT_TRUE(work->Start(1, 0, Gated(), now).ok());
  ASSERT_TRUE(work->Start(2, 0, Free(), now).ok());
  ASSERT_TRUE(work->Start(3, 1, Free(), now).ok());
  EXPECT_THAT(Complete(), ElementsAre(3));
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(work->num_open(), 2);
  EXPECT_EQ(work->next_deadline(), now + kLimit);
  std::atomic_ref(gate).store(1);
  EXPECT_THAT(Complete(), ElementsAre(1, 2));
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(work->next_deadline(), absl::InfiniteFuture());
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(DeviceWorkTest, TooMuchOpenWorkIsRefusedUntilSomeIsComplete) {
  for (WorkId id : {1, 2, 3}) ASSERT_TRUE(work->Start(id, 0, Gated(), now).ok());
  EXPECT_EQ(work->Start(4, 1, Free(), now).code(), absl::StatusCode::kResourceExhausted);
  std::atomic_ref(gate).store(1);
  EXPECT_THAT(Complete(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(work->Start(4, 1, Free(), now).ok());
}

TEST_F(DeviceWorkTest, NothingIsMadeOrTakenAwayOnceItServes) {
  const auto count = [this] {
    int made = 0;
    for (const std::string& call : driver.calls()) {
      made += call.find("Create") != std::string::npos || call.find("Alloc") != std::string::npos ||
              call.find("Destroy") != std::string::npos || call.find("Free") != std::string::npos;
    }
    return made;
  };
  const int before = count();
  std::atomic_ref(gate).store(1);
  for (WorkId id = 1; id <= 100; ++id) {
    ASSERT_TRUE(work->Start(id, static_cast<int>(id % 2), Gated(), now).ok());
    EXPECT_THAT(Complete(), ElementsAre(id));
  }
  EXPECT_EQ(count(), before);
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(DeviceWorkTest, LateWorkIsADeadlineAndNothingIsCompleteAnyMore) {
  ASSERT_TRUE(work->Start(7, 0, Gated(), now).ok());
  now += kLimit;
  EXPECT_EQ(work->Poll(now).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(work->Poll(now).status().message()), HasSubstr("operation 7"));
  std::atomic_ref(gate).store(1);
  EXPECT_FALSE(work->Poll(now).ok()) << "it was said once and for all";
  EXPECT_FALSE(work->Start(8, 0, Free(), now).ok());
}

TEST_F(DeviceWorkTest, AnIllegalAccessLosesTheDevice) {
  ASSERT_TRUE(work->Start(7, 0, Free(), now).ok());
  driver.Poison(kIllegalAddress);
  const auto complete = work->Poll(now);
  EXPECT_EQ(complete.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(complete.status().message()),
              HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700): the device is lost"));
  EXPECT_EQ(streams->CheckIdle().code(), absl::StatusCode::kInternal);
}

TEST_F(DeviceWorkTest, ARefusedLaunchOrEventIsSaidOnceAndForAll) {
  driver.Fail("cuLaunchKernel", kOutOfMemory);
  EXPECT_EQ(work->Start(1, 0, Free(), now).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(work->Start(2, 0, Free(), now).ok());
}

TEST_F(DeviceWorkTest, EventsThatCannotBeMadeAreAnErrorAndNoneStays) {
  const std::string before = driver.Leaks();
  driver.Fail("cuEventCreate", kOutOfMemory, /*skip=*/1);
  EXPECT_EQ(DeviceWork::Create(t, *streams, {.max_open = 3, .limit = kLimit}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(driver.Leaks(), before);
}

}  // namespace
}  // namespace epd::cuda
