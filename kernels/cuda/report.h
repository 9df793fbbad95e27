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

// Whether an operation may go on. Every step takes one, so that a captured graph needs no host.
struct Gate {
  // `done` of the op slot, in memory that the device sees: 1 is a good answer, anything else an
  // error. Null: no slot is waited for. Between uses nobody changes it.
  const std::uint32_t* status = nullptr;
  // Written by earlier steps. Null: not looked at.
  const ReportWord* report = nullptr;

  EPD_HOST_DEVICE bool Open() const {
    if (status != nullptr && *static_cast<const volatile std::uint32_t*>(status) != 1) return false;
    return report == nullptr || *static_cast<const volatile ReportWord*>(report) == kNoReport;
  }
};

}  // namespace epd::cuda
