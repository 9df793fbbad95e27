// Asks a driver for what the CUDA backend needs, by real calls.
#pragma once

#include <functional>
#include <optional>

#include "kernels/cuda/driver/driver_table.h"
#include "proto/epd/v1/cuda_probe.pb.h"

namespace epd::cuda {

// Called before each step with what is known so far; `step` says what comes next.
using Progress = std::function<void(const v1::CudaProbe&)>;

struct DeviceTrials {
  std::optional<int>
      only;  // An ordinal. Others are counted, and nothing is made on them: a context takes a GPU's
             // memory, and a node has a worker for each GPU.
  const void* image = nullptr;  // Of kernels.
};

// Fills `init` and `devices`. Makes a context on each device, one after the other, and leaves nothing
// behind. May block as long as the driver does, and may end the process.
void ProbeDevices(const DriverTable& driver, const DeviceTrials& trials, v1::CudaProbe& probe,
                  const Progress& progress);

}  // namespace epd::cuda
