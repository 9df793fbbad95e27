// Goal: launches are made for the device that is there, and a setting that is none is said to be none.
#include "kernels/cuda/driver/device_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::HasSubstr;

TEST(DeviceShapeTest, IsWhatTheDeviceSays) {
  FakeDriver driver({.compute_major = 12,
                     .compute_minor = 0,
                     .multiprocessors = 170,
                     .max_shared_bytes = 99 << 10});
  ASSERT_EQ(driver.table().init(0), kSuccess);
  DeviceShape shape;
  ASSERT_EQ(ReadDeviceShape(driver.table(), 0, &shape), kSuccess);
  EXPECT_EQ(shape.num_sms, 170);
  EXPECT_EQ(shape.compute_capability, 120);
  EXPECT_EQ(shape.max_shared_bytes, 99 << 10);
  ASSERT_EQ(ReadBulkSetting("4096", &shape), "");
  EXPECT_FALSE(MovesInBulk(14336, shape)) << "a block of the bulk movers wants more";
}

TEST(DeviceShapeTest, ADriverThatRefusesIsNotTakenForAnAnswer) {
  FakeDriver driver;
  ASSERT_EQ(driver.table().init(0), kSuccess);
  driver.Fail("cuDeviceGetAttribute", kInvalidValue, /*skip=*/2);
  DeviceShape shape;
  EXPECT_EQ(ReadDeviceShape(driver.table(), 0, &shape), kInvalidValue);
}

TEST(BulkSettingTest, IsANumberOfBytesOrNothing) {
  DeviceShape shape{.num_sms = 132, .compute_capability = 90};
  EXPECT_EQ(ReadBulkSetting(nullptr, &shape), "");
  EXPECT_EQ(ReadBulkSetting("", &shape), "");
  EXPECT_FALSE(MovesInBulk(14336, shape)) << "off until somebody asks for it";
  EXPECT_EQ(ReadBulkSetting("8192", &shape), "");
  EXPECT_TRUE(MovesInBulk(14336, shape));
  EXPECT_FALSE(MovesInBulk(4096, shape));
  for (const char* bad : {"on", "0", "-1", "8k", " 8"}) {
    EXPECT_THAT(ReadBulkSetting(bad, &shape),
                HasSubstr(std::string("EPD_CUDA_BULK_ROW_BYTES: got '") + bad + "', expected"));
  }
}

}  // namespace
}  // namespace epd::cuda
