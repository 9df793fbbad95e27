// Goal: a list of launches goes through the driver's table in order and does on the device's memory
// what the CPU does; a driver that cannot load or launch is named.
#include "kernels/cuda/driver/kernel_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "daemon/backend/cuda/device/device_streams.h"
#include "daemon/backend/cuda/device/device_trials.h"
#include "kernels/cuda/device_image.h"
#include "kernels/cuda/scratch.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/kernels/exchange.h"

namespace epd::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KernelModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < NumKernels(); ++i) {
      const KernelShape& kernel = KernelAt(i);
      const auto run = [&kernel](void** arguments) {
        EXPECT_TRUE(RunOnHost(kernel, arguments[0], HostOrder::kShuffled)) << kernel.name;
      };
      driver_.SetKernel(kernel.name, run, kernel.args_bytes);
    }
    ASSERT_EQ(t_.init(0), kSuccess);
    context_ = std::make_unique<ContextTrial>(t_, 0);
    absl::StatusOr<DeviceStreams> made = DeviceStreams::Create(t_, 1);
    ASSERT_TRUE(made.ok());
    streams_ = std::make_unique<DeviceStreams>(*std::move(made));
  }
  void TearDown() override {
    for (const DevicePointer memory : allocated_) EXPECT_EQ(t_.memory_free(memory), kSuccess);
    streams_.reset();
    context_.reset();
    EXPECT_EQ(driver_.Leaks(), "");
    EXPECT_THAT(driver_.violations(), IsEmpty());
  }
  void* Allocate(size_t bytes) {
    DevicePointer memory = {};
    EXPECT_EQ(t_.memory_allocate(&memory, bytes > 0 ? bytes : 1), kSuccess);
    allocated_.push_back(memory);
    return reinterpret_cast<void*>(memory);
  }
  template <typename T>
  T* Upload(const T* from, size_t count) {
    T* to = static_cast<T*>(Allocate(count * sizeof(T)));
    std::copy(from, from + count, to);
    return to;
  }

  FakeDriver driver_;
  const DriverTable& t_ = driver_.table();
  std::unique_ptr<ContextTrial> context_;
  std::unique_ptr<DeviceStreams> streams_;
  std::vector<DevicePointer> allocated_;
};

TEST_F(KernelModuleTest, APlanIsBuiltInDeviceMemory) {
  reference::Problem problem;
  problem.num_ranks = 2;
  problem.num_experts = 5;
  problem.top_k = 2;
  problem.alignment = 4;
  problem.max_tokens = 8;
  problem.owner = reference::ContiguousOwners(2, 5);
  problem.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 4}};
  Plans plans(problem);
  const RoutingSpec spec = problem.Spec();

  const LoadedKernels loaded = KernelModule::Load(t_, KernelImage().data);
  ASSERT_EQ(loaded.problem, "");
  BuildPlanOnDeviceArgs args;
  const ReportWord none = kNoReport;
  args.spec = spec;
  args.ids = kTestIds;
  args.report = Upload(&none, 1);
  args.experts = {Upload(problem.topk[0].data(), 6), IndexType::kInt64, 5, args.report};
  args.tiling = {3, 2, 5};
  args.counts = Upload(plans.Counts().data(), plans.Counts().size());
  args.plan = static_cast<uint8_t*>(Allocate(RoutingPlanBytes(spec)));
  args.token_counts = static_cast<int32_t*>(Allocate(4 * NumLocalExperts(spec, 0)));
  args.total_recv = static_cast<int32_t*>(Allocate(4));
  ScratchCursor measure(nullptr);
  TakePlanScratch(spec, measure);
  ScratchCursor cursor(Allocate(measure.used()));
  args.scratch = TakePlanScratch(spec, cursor);
  {
    // The list is gone before the stream runs, as in a worker.
    const LaunchList list = BuildPlanLaunches(args, {132, 90, 0, INT64_MAX});
    ASSERT_EQ(loaded.module->Put(list, streams_->at(0)), kSuccess);
    EXPECT_EQ(driver_.CountCalls("cuLaunchKernel"), list.size());
  }
  EXPECT_EQ(driver_.RunStreams(), 0);
  EXPECT_EQ(*args.report, kNoReport);
  EXPECT_EQ(std::vector<uint8_t>(args.plan, args.plan + RoutingPlanBytes(spec)),
            plans.Memory(0).Copy());
}

TEST_F(KernelModuleTest, OnlyKernelsThatWantMoreSharedMemoryAskForIt) {
  ASSERT_EQ(KernelModule::Load(t_, KernelImage().data).problem, "");
  int wanting = 0;
  for (int i = 0; i < NumKernels(); ++i) wanting += KernelAt(i).shared_bytes > 48 * 1024;
  EXPECT_GT(wanting, 0);
  EXPECT_EQ(driver_.CountCalls("cuFuncSetAttribute"), wanting);
}

TEST_F(KernelModuleTest, AnImageThatDoesNotLoadSaysWhatItNeeds) {
  driver_.Fail("cuModuleLoadData", 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
  const LoadedKernels loaded = KernelModule::Load(t_, KernelImage().data);
  EXPECT_EQ(loaded.module, nullptr);
  EXPECT_THAT(loaded.problem, HasSubstr("compute capability 8.0"));
}

TEST_F(KernelModuleTest, AMissingKernelIsNamedAndTheModuleUnloaded) {
  driver_.Fail("cuModuleGetFunction", 500, 3);
  const LoadedKernels loaded = KernelModule::Load(t_, KernelImage().data);
  EXPECT_EQ(loaded.module, nullptr);
  EXPECT_THAT(loaded.problem, HasSubstr(KernelAt(3).name));
  EXPECT_EQ(driver_.CountCalls("cuModuleUnload"), 1);
}

TEST_F(KernelModuleTest, ARefusedLaunchEndsTheListWithItsCode) {
  const LoadedKernels loaded = KernelModule::Load(t_, KernelImage().data);
  ASSERT_EQ(loaded.problem, "");
  // The first launch lies in the stream and would run on nothing: it must do nothing.
  driver_.SetKernel("epd_count_experts", [](void**) {});
  driver_.Fail("cuLaunchKernel", 700, 1, 100);
  BuildPlanOnDeviceArgs build;
  build.tiling = {1, 1, 1};
  build.spec.num_ranks = build.spec.num_experts = build.spec.top_k = 1;
  build.spec.max_tokens = 1;
  const LaunchList list = BuildPlanLaunches(build, {});
  EXPECT_EQ(loaded.module->Put(list, streams_->at(0)), 700);
  EXPECT_EQ(driver_.CountCalls("cuLaunchKernel"), 2);
  EXPECT_EQ(driver_.RunStreams(), 0);
}

}  // namespace
}  // namespace epd::cuda
