// How kernels say what they found wrong, and how later kernels know.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/kernel_error.h"

namespace epd::cuda {

// A word in device memory: all ones, or the fault with the smallest (index, fault), whichever thread
// saw it first. Whoever launches sets it to kNoReport before the first step of an operation.
using ReportWord = std::uint64_t;
inline constexpr ReportWord kNoReport = ~std::uint64_t{0};

EPD_HOST_DEVICE constexpr ReportWord EncodeReport(KernelFault fault, std::int64_t index) {
  return (static_cast<std::uint64_t>(index) << 8) |
         (static_cast<std::uint64_t>(static_cast<std::int32_t>(fault)) & 0xff);
}

// The only atomic of the kernels, and only on a fault: results never depend on it.
EPD_HOST_DEVICE inline void Note(ReportWord* report, KernelFault fault, std::int64_t index) {
  const ReportWord word = EncodeReport(fault, index);
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(report), static_cast<unsigned long long>(word));
#else
  if (word < *report) *report = word;
#endif
}

// The fault and its index, without the values: {} for kNoReport. The code is kInvalidArgument for a
// rank's own arguments and kDataLoss for plans and what peers sent.
KernelError ReadReport(ReportWord word);

// A word that earlier kernels have written, through the first-level cache.
template <typename T>
EPD_HOST_DEVICE inline T LoadWritten(const T* word) {
#if defined(__CUDA_ARCH__)
  return __ldca(word);
#else
  return *static_cast<const volatile T*>(word);
#endif
}

// Whether an operation may go on. Every step takes one, so that a captured graph needs no host.
//
// A kernel hears what was noted before it began. Of what its own threads note some may hear and some not, so no step may rely on
// either.
//
// Whoever moves a row asks at each row or at each route of it, but in the first-level cache of its SM, which rows of 16-byte words
// pass by: out of device memory a block reads it once. One thread that reads it into shared memory would gain nothing, since that is
// the same memory, a few tens of cycles away.
struct Gate {
  // The answer to an announce, in device memory (use_words.h): 1 is good, anything else an error. Null: none is waited for.
  const std::uint32_t* status = nullptr;
  // Null: not looked at.
  const ReportWord* report = nullptr;

  EPD_HOST_DEVICE bool Open() const {
    if (status != nullptr && LoadWritten(status) != 1) return false;
    return report == nullptr || LoadWritten(report) == kNoReport;
  }
};

}  // namespace epd::cuda
