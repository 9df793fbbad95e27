// The device image: a __global__ function per step of kernel_list.h, and nothing else.
//
// The image is compiled to a fatbin, embedded as data (cuda_image.h) and loaded with
// cuModuleLoadData; launches go through cuLaunchKernel out of the table of driver functions that is
// opened with dlopen. So nothing links libcuda or the CUDA runtime: there is no hidden context, no
// registration before main, no second table of entry points; a machine without a driver runs the
// same programs; and a fake driver sees every launch with its name, grid and arguments.
#include <type_traits>

#include "kernels/cuda/kernel_list.h"

namespace epd::cuda {
namespace {

template <typename Step, int kPhase>
__device__ void RunPhasesFrom(const typename Step::Args& args, const ThreadPosition& thread,
                              typename Step::Shared& shared) {
  Step::template Run<kPhase>(args, thread, shared);
  if constexpr (kPhase + 1 < Step::kPhases) {
    __syncthreads();
    RunPhasesFrom<Step, kPhase + 1>(args, thread, shared);
  }
}

template <typename Step>
__device__ void RunUnits(const typename Step::Args& args) {
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<typename Step::Shared*>(shared_bytes);
  ThreadPosition thread{blockIdx.x, static_cast<std::int32_t>(threadIdx.x),
                        static_cast<std::int32_t>(blockDim.x)};
  BeginShared(shared, thread);
  __syncwarp();
  for (; thread.unit < Step::Units(args); thread.unit += gridDim.x) {
    RunPhasesFrom<Step, 0>(args, thread, shared);
    // The next unit's first phase overwrites what this one's last may still read.
    if constexpr (Step::kPhases > 1) __syncthreads();
  }
  EndShared(shared, thread);
}

}  // namespace
}  // namespace epd::cuda

#define EPD_CUDA_ENTRY(name, ...)                                                \
  extern "C" __global__ void __launch_bounds__(epd::cuda::__VA_ARGS__::kThreads) \
      name(const __grid_constant__ epd::cuda::__VA_ARGS__::Args args) {          \
    epd::cuda::RunUnits<epd::cuda::__VA_ARGS__>(args);                           \
  }

namespace epd::cuda {
EPD_CUDA_KERNELS(EPD_CUDA_ENTRY)
}  // namespace epd::cuda
