// Places in the memory of a move, and what is written into the host's copy of its tables.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/driver/cuda_abi.h"

namespace epd::cuda {

template <typename T>
T* At(DevicePointer base, uint64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

template <typename T>
void Write(uint8_t* to, const std::vector<T>& all) {
  if (!all.empty()) std::memcpy(to, all.data(), all.size() * sizeof(T));
}

}  // namespace epd::cuda
