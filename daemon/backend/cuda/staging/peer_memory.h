// Another worker's device memory in this process, to be read by this worker's device, and not to be written: the driver
// refuses that, whatever a kernel tries.
//
// What is imported by descriptor lives as long as somebody maps it, whatever its owner does: memory of a worker that has
// died, or that has given an arena back, is read as it was until it is unmapped here, and is nobody else's meanwhile.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

struct PeerMemory {
  DevicePointer address = 0;
  uint64_t bytes = 0;
};

// Maps the whole of an exported allocation, read only, for `device`. The descriptor stays the caller's. Memory may be mapped now
// (DeviceStreams::CheckIdle).
//   RESOURCE_EXHAUSTED  the driver refuses (its reason)
absl::StatusOr<PeerMemory> MapPeerMemory(const DriverTable& driver, Device device, int fd,
                                         uint64_t bytes);
// Nothing in a stream may use it any more.
void UnmapPeerMemory(const DriverTable& driver, const PeerMemory& memory);

}  // namespace epd::cuda
