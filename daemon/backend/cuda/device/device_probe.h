// Asks a driver for what the CUDA backend needs, by real calls.
#pragma once

#include <functional>

#include "kernels/cuda/driver/driver_table.h"
#include "proto/epd/v1/cuda_probe.pb.h"

namespace epd::cuda {

// Called before each step with what is known so far; `step` says what comes next.
using Progress = std::function<void(const v1::CudaProbe&)>;

// Fills `init` and `devices`. Makes a context on each device, one after the other, and leaves nothing
// behind. May block as long as the driver does, and may end the process.
void ProbeDevices(const DriverTable& driver, v1::CudaProbe& probe, const Progress& progress);

}  // namespace epd::cuda
