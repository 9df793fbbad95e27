// Goal: launch configurations keep to the SM budget, cover the work, and choose the variant that the
// rows allow.
#include "kernels/cuda/launch.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/cuda/bulk_mover.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

DeviceShape H200() { return {132, 90, 0, INT64_MAX}; }

TEST(LaunchTest, TheBudgetBoundsTheGridOfEveryKernel) {
  DeviceShape device = H200();
  EXPECT_EQ(GridFor(1 << 20, 768, device), 132u);
  EXPECT_EQ(GridFor(1 << 20, 256, device), 528u);
  EXPECT_EQ(GridFor(5, 768, device), 5u);
  EXPECT_EQ(GridFor(529, 256, device), 265u) << "two rounds, as even as can be";
  EXPECT_EQ(GridFor(133, 768, device), 132u) << "a round of half as many would leave SMs idle";
  EXPECT_EQ(GridFor(INT64_MAX / 2, 32, device), 4224u);
  device.max_num_sms = 24;
  for (const int threads : {256, 384, 768, 1024}) {
    EXPECT_EQ(GridFor(1 << 20, threads, device), 24u) << threads;
  }
  device.max_num_sms = 1000;
  EXPECT_EQ(GridFor(1 << 20, 768, device), 132u);
}

TEST(LaunchTest, TheWidthIsTheWidestThatDividesARow) {
  const struct {
    std::uint64_t row_bytes;
    int width;
  } cases[] = {{14336, 16}, {16, 16}, {24, 4}, {14340, 4}, {14338, 2}, {6, 2}, {1, 1}, {7169, 1}};
  for (const auto& c : cases) EXPECT_EQ(RowWidth(c.row_bytes), c.width) << c.row_bytes;
}

TEST(LaunchTest, BulkCopiesNeedTheDeviceTheWidthAndTheThreshold) {
  DeviceShape device = H200();
  EXPECT_FALSE(MovesInBulk(14336, device)) << "nobody has measured it";
  device.min_bulk_row_bytes = 4096;
  EXPECT_TRUE(MovesInBulk(4096, device));
  EXPECT_FALSE(MovesInBulk(4080, device));
  EXPECT_FALSE(MovesInBulk(14340, device));
  device.compute_capability = 89;
  EXPECT_FALSE(MovesInBulk(14336, device));
}

TEST(LaunchTest, PartsGiveEveryWarpWorkAndNoPartIsTiny) {
  const DeviceShape all = H200();
  DeviceShape few = all;
  few.max_num_sms = 24;
  // 4096 rows for 132 * 24 warps: 4 rounds want 4 parts. With 24 SMs whole rows do.
  EXPECT_EQ(PartsFor(4096, 14336, 768, all), 4);
  EXPECT_EQ(PartsFor(4096, 14336, 768, few), 1);
  // A decode step: as many parts as 128 words each allow.
  EXPECT_EQ(PartsFor(128, 14336, 768, all), 7);
  EXPECT_EQ(PartsFor(1, 64, 768, all), 1);
  EXPECT_EQ(PartsFor(0, 14336, 768, all), 1);
}

TEST(LaunchTest, EachThreadHasAColumnWhileThereAreThreads) {
  const DeviceShape all = H200();  // 135,168 threads of 64 registers.
  DeviceShape few = all;
  few.max_num_sms = 24;
  const struct {
    std::int64_t num_tokens;
    std::uint64_t row_bytes;
    DeviceShape device;
    std::int32_t threads;
    std::int32_t parts;
  } cases[] = {
      {1, 14336, all, 224, 4},     // Each thread one of the 896 columns.
      {128, 14336, all, 224, 4},   // 114,688 columns.
      {256, 14336, all, 224, 2},   // Two columns each.
      {1024, 14336, all, 224, 1},  // A block for each token.
      {4096, 14336, all, 224, 1},
      {4096, 14336, few, 896, 1},  // One block to an SM.
      {64, 8192, all, 256, 2},
      {4096, 8256, all, 192, 1},  // 516 columns: three rounds of 172, and not of 256, 256 and 4.
      {4096, 128, all, 32, 1},    // Fewer columns than a warp has threads.
      {4096, 130, all, 96, 1},    // 65 columns of 2 bytes.
      {0, 14336, all, 32, 1},
      {16, 0, all, 32, 1},
  };
  for (const auto& c : cases) {
    const BlockShape shape = BlocksFor(c.num_tokens, c.row_bytes, c.device);
    EXPECT_EQ(shape.threads, c.threads) << c.num_tokens << " x " << c.row_bytes;
    EXPECT_EQ(shape.parts, c.parts) << c.num_tokens << " x " << c.row_bytes;
  }
}

// A decode step has all of its blocks on the device at a time, a training step as many as there is room for.
TEST(LaunchTest, LaunchesOfRowsHaveThatShape) {
  GatherReduceArgs gather;
  PushDirectArgs push;
  gather.row_bytes = push.row_bytes = 14336;
  gather.top_k = push.top_k = 8;
  for (const std::int64_t num_tokens : {128, 4096}) {
    gather.num_tokens = push.num_tokens = num_tokens;
    for (const Launch& launch :
         {GatherReduceLaunches(gather, DataType::kBfloat16, nullptr, H200())[0],
          PushDirectLaunches({&push, &push, 1}, H200())[0]}) {
      EXPECT_EQ(launch.threads, 224u);
      EXPECT_EQ(launch.grid, 512u) << "of 4096 tokens eight each, where 528 blocks had 7 or 8";
    }
  }
}

// Every part of a row, cut in any number of parts, is covered exactly once.
TEST(LaunchTest, PartsCoverARow) {
  for (std::int64_t words = 0; words < 40; ++words) {
    for (std::int32_t n = 1; n < 9; ++n) {
      EXPECT_EQ(PartBegin(words, 0, n), 0);
      EXPECT_EQ(PartBegin(words, n, n), words);
      for (std::int32_t p = 0; p < n; ++p) {
        EXPECT_LE(PartBegin(words, p, n), PartBegin(words, p + 1, n));
      }
    }
  }
}

TEST(LaunchTest, ListsNameTheVariantAndLeaveOutWhatHasNoWork) {
  DeviceShape device = H200();
  CopyRowsArgs copy;
  copy.row_bytes = 14336;
  EXPECT_EQ(CopyRowsLaunches(copy, device).size(), 0);
  copy.max_rows = 4096;
  EXPECT_STREQ(CopyRowsLaunches(copy, device)[0].function, "epd_copy_rows_16");
  copy.row_bytes = 14338;
  EXPECT_STREQ(CopyRowsLaunches(copy, device)[0].function, "epd_copy_rows_2");
  copy.row_bytes = 14336;
  device.min_bulk_row_bytes = 0;
  const LaunchList bulk = CopyRowsLaunches(copy, device);
  EXPECT_STREQ(bulk[0].function, "epd_copy_rows_bulk");
  EXPECT_EQ(bulk[0].shared_bytes, sizeof(BulkShared));
  EXPECT_LE(bulk[0].shared_bytes, 227u * 1024) << "the most that sm_90 gives a block";
  GatherReduceArgs gather;
  gather.num_tokens = 16;
  gather.row_bytes = 30;
  gather.top_k = 2;
  EXPECT_STREQ(GatherReduceLaunches(gather, DataType::kFloat16, nullptr, device)[0].function,
               "epd_gather_float16_2");
}

TEST(LaunchTest, TheHostKnowsEveryKernelByItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < NumKernels(); ++i) names.insert(KernelAt(i).name);
  EXPECT_EQ(static_cast<int>(names.size()), NumKernels());
  Launch launch;
  launch.function = "epd_nothing";
  EXPECT_FALSE(RunOnHost(launch, HostOrder::kForward));
  launch.function = "epd_sum_tiles";
  EXPECT_FALSE(RunOnHost(launch, HostOrder::kForward)) << "no arguments, no grid";
}

// Fewer bytes cross the link when tokens reach ranks several times over; one copy more is made where
// they do not.
TEST(LaunchTest, ReportsKeepTheSmallestFault) {
  ReportWord report = kNoReport;
  EXPECT_TRUE(ReadReport(report).ok());
  Note(&report, KernelFault::kPlanRoute, 9);
  Note(&report, KernelFault::kStageRouteSlot, 4);
  Note(&report, KernelFault::kPlanRoute, 7);
  EXPECT_EQ(ReadReport(report).fault, KernelFault::kStageRouteSlot);
  EXPECT_EQ(ReadReport(report).index, 4);
  EXPECT_EQ(ReadReport(report).code, Code::kDataLoss);
}

}  // namespace
}  // namespace epd::cuda
