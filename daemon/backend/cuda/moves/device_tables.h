// Places in the memory of a move, and what is written into the host's copy of its tables.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "daemon/backend/cuda/moves/move_steps.h"
#include "kernels/cuda/driver/cuda_abi.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"

namespace epd::cuda {

template <typename T>
T* At(DevicePointer base, uint64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

// The offset of the next `count` of them.
template <typename T>
uint64_t Take(ScratchCursor& cursor, int64_t count) {
  const uint64_t at = cursor.used();
  cursor.Take<T>(count);
  return at;
}

template <typename T>
void Write(uint8_t* to, const std::vector<T>& all) {
  if (!all.empty()) std::memcpy(to, all.data(), all.size() * sizeof(T));
}

// The same of what a step does for each of several ranks, at `offset` of the tables.
template <typename Args>
ArgsOfEach<Args> WriteEach(const MovePlaces& places, uint64_t offset,
                           const std::vector<Args>& all) {
  Write(places.host + offset, all);
  return {reinterpret_cast<Args*>(places.host + offset), At<const Args>(places.device, offset),
          static_cast<int32_t>(all.size())};
}

}  // namespace epd::cuda
