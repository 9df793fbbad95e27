// What one operation has and puts into a stream: memory, copies and kernels, and what goes between members
// in the middle.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/backend/cuda/members/communicator.h"
#include "daemon/backend/cuda/members/library_call.h"
#include "daemon/backend/cuda/moves/stream_steps.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// Memory that a move needs besides the regions.
struct MoveRoom {
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;  // Registered; the device's view of it has the same bytes.
};

// Where it is.
struct MovePlaces {
  std::vector<DevicePointer> arenas;  // By arena of the set.
  DevicePointer device = 0;
  DevicePointer host_on_device = 0;  // The device's address of `host`.
  uint8_t* host = nullptr;
};

// What goes into a stream, in order.
struct MoveSteps {
  StreamSteps before;
  std::vector<PeerBytes> exchange;     // With the other workers: by NCCL,
  std::optional<LibraryCall> library;  // ... or by a library that moves the rows itself.
  StreamSteps after;                   // Only where there are others.
};

}  // namespace epd::cuda
