// Where launches run: on the GPU, or on the host from the same source. Memory of both can be read and
// written by the host at any time when nothing runs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/gpu/driver.h"

namespace epd::gpu {

class Executor {
 public:
  virtual ~Executor() = default;
  // Aligned to 64 bytes; freed with the executor.
  virtual void* Allocate(std::size_t bytes) = 0;
  // Frees everything that Allocate gave.
  virtual void FreeAll() = 0;
  // Runs a list and waits. False if a launch is refused.
  virtual bool Run(const cuda::LaunchList& list) = 0;
  virtual cuda::DeviceShape Shape() const = 0;
  virtual std::string Name() const = 0;
};

// Launches on a stream of a device; also for benchmarks, which do not wait after each list.
class GpuLauncher {
 public:
  // `image` is a fatbin. Ends the program if the device cannot load it.
  GpuLauncher(const Driver& driver, const void* image);
  void Launch(const cuda::LaunchList& list, CUstream stream);

 private:
  CUfunction Find(const cuda::Launch& launch);

  const Driver& driver_;
  CUmodule module_ = nullptr;
  std::map<std::string, CUfunction> functions_;
};

// The GPU, with managed memory.
std::unique_ptr<Executor> MakeGpuExecutor(const Driver& driver, const Device& device,
                                          const void* image);

// This machine's CPU; shows that a test program itself is right where there is no GPU.
std::unique_ptr<Executor> MakeHostExecutor();

// A file's bytes, aligned as images must be; ends the program if it cannot be read.
std::vector<std::max_align_t> ReadImage(const std::string& path);

}  // namespace epd::gpu
