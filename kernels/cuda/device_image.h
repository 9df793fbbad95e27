// The compiled CUDA kernels: what cuModuleLoadData takes.
#pragma once

#include <cstddef>

namespace epd::cuda {

// A fatbin with code for sm_80, sm_90 and sm_100, and PTX of compute_90 that the driver compiles for
// what is newer. It lives as long as the program.
struct DeviceImage {
  const void* data;
  std::size_t bytes;
  int oldest_driver;  // Release that loads it: 525. CUDA 13's code needs 580, whatever the GPU.
};

DeviceImage KernelImage();

}  // namespace epd::cuda
