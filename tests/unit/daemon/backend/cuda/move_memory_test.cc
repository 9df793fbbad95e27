// Goal: what moves in several streams write for themselves does not overlap, whatever sizes they ask for, and moves of one stream
// share it.
#include "daemon/backend/cuda/moves/move_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "kernels/cuda/launch.h"
#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

class MoveMemoryTest : public ::testing::Test {
 protected:
  MoveMemoryTest() {
    for (int i = 0; i < NumKernels(); ++i) {
      driver_.SetKernel(
          KernelAt(i).name, [](void**) {}, KernelAt(i).args_bytes);
    }
    CudaDeviceOptions options;
    options.staging_bytes = 8 << 20;
    options.image = "an image";
    auto device = CudaDevice::Open(driver_.table(), options);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void GiveBack(MoveMemory& memory) {
    const MoveMemory::Left left = memory.TakeAway();
    for (const DevicePointer one : left.memory) EXPECT_TRUE(device_->staging().GiveBack(one).ok());
    for (const auto& [pages, bytes] : left.pages) {
      driver_.table().host_unregister(pages);
      munmap(pages, bytes);
    }
  }

  FakeDriver driver_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(MoveMemoryTest, EachBlockHasScratchMemoryOfItsOwnWhereMovesAreInSeveralStreams) {
  MoveMemory memory(*device_, 2, MoveMemory::Scratch::kOfEachBlock);
  const int first = memory.TakeBlock({.device_bytes = 5000, .host_bytes = 10}).value();
  // It takes no more than the first, and does not begin where a part of its own size would.
  const int second = memory.TakeBlock({.device_bytes = 16, .host_bytes = 10}).value();
  const DevicePointer a = memory.Places(first).device;
  const DevicePointer b = memory.Places(second).device;
  EXPECT_GE(std::max(a, b) - std::min(a, b), 5000u);
  EXPECT_EQ(a % 256, 0u);
  EXPECT_EQ(b % 256, 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.TakeBlock({}).status()));
  GiveBack(memory);
}

TEST_F(MoveMemoryTest, BlocksOfOneStreamShareIt) {
  MoveMemory memory(*device_, 2);
  const int first = memory.TakeBlock({.device_bytes = 5000, .host_bytes = 10}).value();
  const int second = memory.TakeBlock({.device_bytes = 5000, .host_bytes = 10}).value();
  EXPECT_EQ(memory.Places(first).device, memory.Places(second).device);
  EXPECT_NE(memory.Places(first).host, memory.Places(second).host);
  GiveBack(memory);
}

}  // namespace
}  // namespace epd::cuda
