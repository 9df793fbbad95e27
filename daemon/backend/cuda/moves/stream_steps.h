// What one operation puts into a stream, in order: copies, fills and kernels.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/driver/kernel_module.h"
#include "kernels/cuda/launch.h"

namespace epd::cuda {

// Constants only. Host memory in it is registered, so that no copy waits.
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

}  // namespace epd::cuda
