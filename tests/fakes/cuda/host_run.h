// Runs launches on the CPU, in host memory, from the same steps that the GPU runs.
//
// For tests and for fakes of the driver. Blocks and threads go one after the other, phase by phase,
// in an order that the caller picks: what comes out must not depend on it, since on a GPU nobody
// picks.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace epd::cuda {

enum class HostOrder {
  kForward,
  kBackward,  // blocks and threads from the last to the first
  kShuffled,  // both in a fixed scrambled order
};

// Runs one launch to its end. False if the image has no such function, or if the parameter's size
// or the block's are not what that function takes.
bool RunOnHost(const Launch& launch, HostOrder order);

// Runs a list in order; false at the first launch that RunOnHost refuses.
bool RunOnHost(const LaunchList& list, HostOrder order);

// Runs the kernel of that name with its one parameter, as a driver does that is told to launch it.
bool RunOnHost(const KernelShape& kernel, const void* args, HostOrder order);

}  // namespace epd::cuda
