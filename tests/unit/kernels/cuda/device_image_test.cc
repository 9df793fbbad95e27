// Goal: what is embedded is a whole fatbin, as nvcc wrote it, which all drivers load that the documentation names.
#include "kernels/cuda/device_image.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace epd::cuda {
namespace {

// The header that every fatbin begins with: magic, version, its own size, and what follows it.
struct FatbinHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t body_bytes;
};

TEST(DeviceImageTest, TheImageIsAWholeFatbin) {
  const DeviceImage image = KernelImage();
  FatbinHeader header;
  ASSERT_GT(image.bytes, sizeof(header));
  std::memcpy(&header, image.data, sizeof(header));
  EXPECT_EQ(header.magic, 0xba55ed50u);
  EXPECT_EQ(header.header_bytes + header.body_bytes, image.bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(image.data) % 16, 0u);
}

// With nvcc of CUDA 13 and no ptxas of CUDA 12 it would be 580, and doctor would say so on each machine.
TEST(DeviceImageTest, DriversFromR525OnLoadIt) { EXPECT_EQ(KernelImage().oldest_driver, 525); }

}  // namespace
}  // namespace epd::cuda
