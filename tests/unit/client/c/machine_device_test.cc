// Goal: processes that each see one GPU as their first are not all taken for ranks of the machine's first.
#include "client/c/machine_device.h"

#include "gtest/gtest.h"

namespace epd::client {
namespace {

TEST(MachineDeviceTest, IsTheOneThatTheEnvironmentMeans) {
  EXPECT_EQ(MachineDevice("cuda:0", nullptr), "cuda:0");
  EXPECT_EQ(MachineDevice("cuda:0", "3"), "cuda:3");
  EXPECT_EQ(MachineDevice("cuda:1", "2,5,7"), "cuda:5");
  EXPECT_EQ(MachineDevice("cuda:2", "2,5,7"), "cuda:7");
  EXPECT_EQ(MachineDevice("cuda:1", "GPU-0a,GPU-1b"), "GPU-1b");
}

TEST(MachineDeviceTest, StaysWhereTheEnvironmentSaysNothingOfIt) {
  EXPECT_EQ(MachineDevice("cuda:1", "3"), "cuda:1");
  EXPECT_EQ(MachineDevice("cuda:0", ""), "cuda:0");
  EXPECT_EQ(MachineDevice("cuda:x", "3"), "cuda:x");
  EXPECT_EQ(MachineDevice("TFRT_CPU_0", "3"), "TFRT_CPU_0");
  EXPECT_EQ(MachineDevice("", "3"), "");
}

}  // namespace
}  // namespace epd::client
