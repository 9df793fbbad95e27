// Where one thread of a kernel stands, as plain numbers.
//
// Every CUDA kernel of epd is a *step*: a struct whose Run is an ordinary __host__ __device__
// function of the arguments, a ThreadPosition and the block's shared memory. kernels.cu wraps steps for the
// GPU; host_run.h runs all their blocks and threads one after the other on the CPU. So index
// arithmetic is tested, bit for bit, where there is no GPU. A step has
//
//   Args                      plain data of pointers and sizes: the kernel's one parameter
//   Shared                    memory that a block shares; empty for most
//   kThreads                  threads of a block: a constant, so registers can be bounded. A launch may have fewer where
//                             neither Units nor Shared counts on them
//   kPhases                   phases of a unit; a barrier of the block stands between two
//   Units(args)               blocks' worth of work; a grid of any size walks all of them
//   Run<phase>(args, thread, shared)
//
// Threads of different units never read what another unit writes: what must be finished before
// something else begins is another step, launched behind it on the same stream. Hence no step waits
// for anything, and none may: a kernel that spins on another block or process can hang a shared GPU.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace epd::cuda {

inline constexpr std::int32_t kWarpThreads = 32;

struct ThreadPosition {
  std::int64_t unit = 0;         // in [0, Units(args))
  std::int32_t index = 0;        // in the block
  std::int32_t num_threads = 0;  // of the block, a multiple of kWarpThreads

  EPD_HOST_DEVICE std::int32_t Warp() const { return index / kWarpThreads; }
  EPD_HOST_DEVICE std::int32_t InWarp() const { return index % kWarpThreads; }
  EPD_HOST_DEVICE std::int32_t NumWarps() const { return num_threads / kWarpThreads; }
  // Numbers all warps of all units.
  EPD_HOST_DEVICE std::int64_t Task() const { return unit * NumWarps() + Warp(); }
};

// For steps that share nothing.
struct NoShared {};

EPD_HOST_DEVICE constexpr std::int64_t CeilDiv(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

}  // namespace epd::cuda
