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
  PushDirectArgs push;
  push.row_bytes = 14336;
  push.top_k = 8;
  push.num_ranks = 1;
  EXPECT_EQ(PushDirectLaunches(push, device).size(), 0);
  push.num_tokens = 4096;
  EXPECT_STREQ(PushDirectLaunches(push, device)[0].function, "epd_push_direct_16");
  push.row_bytes = 14338;
  EXPECT_STREQ(PushDirectLaunches(push, device)[0].function, "epd_push_direct_2");
  push.row_bytes = 14336;
  device.min_bulk_row_bytes = 0;
  const LaunchList bulk = PushDirectLaunches(push, device);
  EXPECT_STREQ(bulk[0].function, "epd_push_direct_bulk");
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
