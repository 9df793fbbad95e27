#include "kernels/cuda/device_image.h"

namespace epd::cuda {
namespace {

alignas(16) constexpr unsigned char kImage[] = {
#include "kernels/cuda/kernels_fatbin.inc"
};

constexpr int kOldestDriver =
#include "kernels/cuda/kernels_driver.inc"
    ;

}  // namespace

DeviceImage KernelImage() { return {kImage, sizeof(kImage), kOldestDriver}; }

}  // namespace epd::cuda
