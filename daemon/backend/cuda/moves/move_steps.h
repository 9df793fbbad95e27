// What one operation has and puts into a stream: memory, copies and kernels, and what goes between members
// in the middle.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "daemon/backend/cuda/members/communicator.h"
#include "daemon/backend/cuda/members/library_call.h"
#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/driver/kernel_module.h"
#include "kernels/cuda/launch.h"

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
  // Of a move that reads other workers' memory: where the region of each of their ranks is mapped; [R] by rank.
  std::vector<DevicePointer> peer_regions = {};
};

// What goes into a stream, in order: copies, fills and kernels. Constants only; host memory in it is registered, so that
// no copy waits.
class StreamSteps {
 public:
  // Nothing for 0 bytes.
  void Copy(DevicePointer to, DevicePointer from, uint64_t bytes);
  void Fill(DevicePointer to, uint8_t byte, uint64_t bytes);
  void Launch(const LaunchList& list) { steps_.emplace_back(list); }

  // Puts everything into the stream; the driver's first bad code.
  Result Put(const DriverTable& driver, const KernelModule& module, Stream stream) const;

 private:
  struct CopyStep {
    DevicePointer to;
    DevicePointer from;
    uint64_t bytes;
  };
  struct FillStep {
    DevicePointer to;
    uint64_t bytes;
    uint8_t byte;
  };

  std::vector<std::variant<CopyStep, FillStep, LaunchList>> steps_;
};

// An operation, in order.
struct MoveSteps {
  StreamSteps before;
  std::vector<PeerBytes> exchange;     // With the other workers: by NCCL,
  std::optional<LibraryCall> library;  // ... or by a library that moves the rows itself.
  StreamSteps after;                   // Only where there are others.
};

}  // namespace epd::cuda
