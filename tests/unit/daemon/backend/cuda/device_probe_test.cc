// Goal: each thing that the CUDA backend needs of a device is tried by a real call, what fails is said
// with the call's name, and nothing stays behind.
#include "daemon/backend/cuda/device/device_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::CudaProbe Probe(FakeDriver& driver, std::vector<std::string>* steps = nullptr,
                    std::optional<int> only = {}) {
  for (int i = 0; i < NumKernels(); ++i) driver.SetKernel(KernelAt(i).name, [](void**) {});
  v1::CudaProbe probe;
  ProbeDevices(driver.table(), {.only = only, .image = "image"}, probe,
               [steps](const v1::CudaProbe& so_far) {
                 if (steps != nullptr) steps->push_back(so_far.step());
               });
  EXPECT_THAT(driver.violations(), IsEmpty());
  return probe;
}

TEST(DeviceProbe, AGoodDeviceIsDescribedAndEveryTrialWorks) {
  FakeDriver driver({.num_devices = 2, .compute_minor = 0, .mps = true});
  std::vector<std::string> steps;
  const v1::CudaProbe probe = Probe(driver, &steps);
  ASSERT_EQ(probe.devices_size(), 2);
  const v1::CudaProbe::Device& device = probe.devices(1);
  EXPECT_EQ(device.ordinal(), 1);
  EXPECT_EQ(device.name(), "Fake GPU 1");
  EXPECT_EQ(device.id(), "GPU-02020202-0202-0202-0202-020202020202");
  EXPECT_EQ(device.compute_major(), 9);
  EXPECT_EQ(device.multiprocessors(), 132);
  EXPECT_EQ(device.total_bytes(), uint64_t{8} << 30);
  EXPECT_EQ(device.free_bytes(), uint64_t{8} << 30);
  EXPECT_TRUE(device.mps());
  EXPECT_THAT(device.no_access_to(), IsEmpty());
  for (const auto* trial : {&device.context(), &device.virtual_memory(), &device.ipc_handle(),
                            &device.kernels(), &device.stream_memory_operations()}) {
    EXPECT_TRUE(trial->done());
    EXPECT_EQ(trial->problem(), "");
  }
  EXPECT_EQ(driver.Leaks(), "");
  EXPECT_THAT(steps, Contains("stream memory operations on device 1"));
}

TEST(DeviceProbe, ASingleDeviceIsTriedAndTheOthersAreCounted) {
  FakeDriver driver({.num_devices = 8});
  const v1::CudaProbe probe = Probe(driver, nullptr, 5);
  ASSERT_EQ(probe.devices_size(), 8);
  EXPECT_EQ(driver.CountCalls("cuDevicePrimaryCtxRetain"), 1);
  EXPECT_EQ(driver.device(), 5);
  for (const v1::CudaProbe::Device& device : probe.devices()) {
    EXPECT_EQ(device.context().done(), device.ordinal() == 5) << device.ordinal();
  }
}

TEST(DeviceProbe, KernelsThatADriverIsTooOldForAreSaid) {
  FakeDriver driver;
  driver.Fail("cuModuleLoadData", 222);
  const v1::CudaProbe probe = Probe(driver);
  EXPECT_THAT(probe.devices(0).kernels().problem(), HasSubstr("cuModuleLoadData"));
  EXPECT_EQ(probe.devices(0).stream_memory_operations().problem(), "");
  EXPECT_EQ(driver.Leaks(), "");
}

TEST(DeviceProbe, ADriverThatDoesNotStartHasNoDevices) {
  FakeDriver driver({.num_devices = 0});
  const v1::CudaProbe probe = Probe(driver);
  EXPECT_EQ(probe.init().problem(), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
  EXPECT_THAT(probe.devices(), IsEmpty());
}

TEST(DeviceProbe, EachMissingAbilityIsSaidWithTheCallThatFails) {
  FakeMachine machine;
  machine.posix_descriptors = false;
  machine.legacy_ipc = false;
  machine.stream_memory_operations = false;
  machine.peer_access = false;
  machine.num_devices = 2;
  FakeDriver driver(machine);
  const v1::CudaProbe probe = Probe(driver);
  ASSERT_EQ(probe.devices_size(), 2);
  const v1::CudaProbe::Device& device = probe.devices(0);
  EXPECT_EQ(device.virtual_memory().problem(), "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801)");
  EXPECT_EQ(device.ipc_handle().problem(), "cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED (801)");
  EXPECT_EQ(device.stream_memory_operations().problem(),
            "cuStreamBatchMemOp: CUDA_ERROR_NOT_SUPPORTED (801)");
  EXPECT_THAT(device.no_access_to(), ElementsAre(1));
  EXPECT_EQ(driver.Leaks(), "");
}

TEST(DeviceProbe, AWaitThatACpuCannotEndIsNoStreamMemoryOperation) {
  FakeDriver driver({.waits_end = false});
  const v1::CudaProbe probe = Probe(driver);
  EXPECT_THAT(probe.devices(0).stream_memory_operations().problem(), HasSubstr("did not end"));
  EXPECT_EQ(driver.CountCalls("cuStreamDestroy"), 0) << "nothing is taken from a stuck stream";
}

// Each call that a trial makes may fail; the trial says so and gives back what it had.
TEST(DeviceProbe, EachCallMayFailAndNothingLeaks) {
  for (const char* call :
       {"cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity", "cuMemCreate",
        "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve",
        "cuMemMap", "cuMemSetAccess", "cuMemAlloc", "cuIpcGetMemHandle", "cuMemHostRegister",
        "cuMemHostGetDevicePointer", "cuStreamCreate", "cuStreamBatchMemOp"}) {
    FakeDriver driver;
    driver.Fail(call, kOutOfMemory);
    const v1::CudaProbe probe = Probe(driver);
    const v1::CudaProbe::Device& device = probe.devices(0);
    std::vector<std::string> problems;
    for (const auto* trial : {&device.context(), &device.virtual_memory(), &device.ipc_handle(),
                              &device.stream_memory_operations()}) {
      if (!trial->problem().empty()) problems.push_back(trial->problem());
    }
    EXPECT_THAT(problems, ElementsAre(std::string(call) + ": CUDA_ERROR_OUT_OF_MEMORY (2)"));
    EXPECT_EQ(driver.Leaks(), "") << call;
  }
}

}  // namespace
}  // namespace epd::cuda
