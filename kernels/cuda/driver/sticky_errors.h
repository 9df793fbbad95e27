// Errors that a context does not outlive.
#pragma once

#include <algorithm>
#include <iterator>

#include "kernels/cuda/driver/cuda_abi.h"

namespace epd::cuda {

// Most are those of which cuda.h says that any further work returns the same error and that the process must be ended; the
// others say of what has no context any more, or of memory and links that have failed for good.
inline constexpr Result kStickyErrors[] = {
    4,                // CUDA_ERROR_DEINITIALIZED
    214,              // CUDA_ERROR_ECC_UNCORRECTABLE
    220,              // CUDA_ERROR_NVLINK_UNCORRECTABLE
    226,              // CUDA_ERROR_CONTAINED
    kIllegalAddress,  // 700
    702,              // CUDA_ERROR_LAUNCH_TIMEOUT
    709,              // CUDA_ERROR_CONTEXT_IS_DESTROYED
    710,              // CUDA_ERROR_ASSERT
    714,              // CUDA_ERROR_HARDWARE_STACK_ERROR
    715,              // CUDA_ERROR_ILLEGAL_INSTRUCTION
    716,              // CUDA_ERROR_MISALIGNED_ADDRESS
    717,              // CUDA_ERROR_INVALID_ADDRESS_SPACE
    718,              // CUDA_ERROR_INVALID_PC
    719,              // CUDA_ERROR_LAUNCH_FAILED
    721,              // CUDA_ERROR_TENSOR_MEMORY_LEAK
    810,              // CUDA_ERROR_MPS_CLIENT_TERMINATED
    911,              // CUDA_ERROR_EXTERNAL_DEVICE
};

// After such an error no stream of the context runs anything any more. Any other one, that of a capture above all, says
// nothing about them.
inline bool IsSticky(Result code) {
  return std::find(std::begin(kStickyErrors), std::end(kStickyErrors), code) !=
         std::end(kStickyErrors);
}

}  // namespace epd::cuda
