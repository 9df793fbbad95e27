#include "tests/fakes/cuda/host_run.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/kernel_list.h"
#include "tests/fakes/cuda/host_step.h"

namespace epd::cuda {
namespace {

struct Kernel {
  const char* name;
  bool (*run)(const Launch&, HostOrder);
};

constexpr Kernel kKernels[] = {
#define EPD_CUDA_HOST_KERNEL(name, ...) {#name, RunStepOnHost<__VA_ARGS__>},
    EPD_CUDA_KERNELS(EPD_CUDA_HOST_KERNEL)
#undef EPD_CUDA_HOST_KERNEL
};

}  // namespace

bool RunOnHost(const Launch& launch, HostOrder order) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, launch.function) == 0) return kernel.run(launch, order);
  }
  return false;
}

bool RunOnHost(const LaunchList& list, HostOrder order) {
  return std::all_of(list.begin(), list.end(),
                     [order](const Launch& launch) { return RunOnHost(launch, order); });
}

bool RunOnHost(const KernelShape& kernel, const void* args, HostOrder order) {
  Launch launch;
  launch.function = kernel.name;
  launch.grid = 3;
  launch.threads = kernel.threads;
  launch.args_bytes = kernel.args_bytes;
  std::memcpy(launch.args, args, kernel.args_bytes);
  return RunOnHost(launch, order);
}

}  // namespace epd::cuda
