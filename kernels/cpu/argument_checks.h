// Argument checks that several launchers share; for the CPU kernels' own sources.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernel_fault.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "kernels/scatter_stage.h"

namespace epd {

// Keeps row_bytes * slots far below 2^63.
inline constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 30;
inline constexpr std::int64_t kMaxCapacity = (std::int64_t{1} << 31) - 1;

// A view that ViewRoutingPlan filled, not a default one.
inline KernelError CheckPlan(const RoutingPlanView* plan) {
  if (plan == nullptr || plan->counts == nullptr) return MissingArgument("plan");
  return {};
}

inline KernelError CheckRowBytes(std::uint64_t row_bytes) {
  if (row_bytes >= 1 && row_bytes <= kMaxRowBytes) return {};
  return Invalid(KernelFault::kRowBytes, row_bytes, row_bytes == 0 ? 1 : kMaxRowBytes);
}

// After CheckRowBytes: a slice of rows of so many bytes.
inline KernelError CheckSlice(const StageRowSlice& slice, std::uint64_t row_bytes) {
  const std::uint64_t whole = StageRowBytes(slice, row_bytes);
  if (const KernelError error = CheckRowBytes(whole); !error.ok()) return error;
  if (row_bytes <= whole && slice.offset <= whole - row_bytes) return {};
  return Invalid(KernelFault::kRowBytes, slice.offset + row_bytes, whole);
}

inline KernelError CheckCapacity(std::int64_t capacity) {
  if (capacity >= 0 && capacity <= kMaxCapacity) return {};
  return Invalid(KernelFault::kCapacity, capacity, kMaxCapacity);
}

inline KernelError CheckStageMemory(const void* stage, std::size_t bytes, std::size_t need) {
  if (stage == nullptr) return MissingArgument("stage");
  const std::size_t remainder =
      reinterpret_cast<std::uintptr_t>(stage) % static_cast<std::size_t>(kStageRowsAlignment);
  if (remainder != 0) return Invalid(KernelFault::kMisaligned, remainder, kStageRowsAlignment);
  if (bytes < need) return Invalid(KernelFault::kBufferTooSmall, bytes, need);
  return {};
}

// memset that takes null when there is nothing to set.
inline void ZeroBytes(void* p, std::int64_t count, std::uint64_t each_bytes) {
  if (p != nullptr && count > 0) std::memset(p, 0, static_cast<std::size_t>(count) * each_bytes);
}

}  // namespace epd
