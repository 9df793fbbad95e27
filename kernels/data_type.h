// Element and index types the kernels know.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace epd {

// Element types of gather-and-reduce. Scatter moves bytes and needs none.
enum class DataType : std::int32_t { kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3 };

// Element types of topk_idx.
enum class IndexType : std::int32_t { kInt32 = 1, kInt64 = 2 };

// Bytes per element; 0 for a value that is no DataType.
EPD_HOST_DEVICE constexpr std::size_t DataTypeBytes(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kBfloat16:
    case DataType::kFloat16:
      return 2;
  }
  return 0;
}

}  // namespace epd
