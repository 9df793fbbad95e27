// What texts say of a GPU: which it is, and why a process gets no context there.
#pragma once

#include <string>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// Its id, which is the same whoever counts: processes may see other GPUs, or the same ones in another order. As nvidia-smi and
// CUDA_VISIBLE_DEVICES name it: "GPU-5f2b8c1e-...", of an instance of a divided GPU, which has one of its own, "MIG-...". "": the
// driver does not say. Needs no context, but an initialised driver.
std::string IdOf(const DriverTable& driver, Device device);

// Why epd's worker and its clients cannot both use the GPU `id`: its compute mode, unless MPS has the context for all. "": they can.
std::string WhyShutOut(int compute_mode, bool mps, const std::string& id);

// Describe() of a context that was refused, with what to do where the GPU's compute mode is why.
std::string DescribeNoContext(const DriverTable& driver, Device device, Result code);

}  // namespace epd::cuda
