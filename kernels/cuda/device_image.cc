#include "kernels/cuda/device_image.h"

namespace epd::cuda {
namespace {

alignas(16) constexpr unsigned char kImage[] = {
#include "kernels/cuda/kernels_fatbin.inc"
};

}  // namespace

DeviceImage KernelImage() { return {kImage, sizeof(kImage)}; }

}  // namespace epd::cuda
