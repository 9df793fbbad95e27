// Which of the experts figures are told of.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace epd {

// Of which experts a prepare tells its counts where not all fit: the same on all ranks, another slice for each plan.
struct RouteSlice {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t num_slices = 1;
};
EPD_HOST_DEVICE inline RouteSlice RouteSliceOf(std::uint64_t plan_id, std::int32_t num_experts,
                                               std::int32_t capacity) {
  const std::int32_t num = (num_experts + capacity - 1) / capacity;
  // Not in turn: a model's layers prepare in turn, too.
  const std::uint64_t mixed = (plan_id * 0x9e3779b97f4a7c15) >> 32;
  const auto at = static_cast<std::int64_t>(mixed % static_cast<std::uint64_t>(num));
  return {static_cast<std::int32_t>(at * num_experts / num),
          static_cast<std::int32_t>((at + 1) * num_experts / num), num};
}

}  // namespace epd
