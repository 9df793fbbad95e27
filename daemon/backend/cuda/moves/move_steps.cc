#include "daemon/backend/cuda/moves/move_steps.h"

namespace epd::cuda {

void StreamSteps::Copy(DevicePointer to, DevicePointer from, uint64_t bytes) {
  if (bytes > 0) steps_.emplace_back(CopyStep{to, from, bytes});
}

void StreamSteps::Fill(DevicePointer to, uint8_t byte, uint64_t bytes) {
  if (bytes > 0) steps_.emplace_back(FillStep{to, bytes, byte});
}

Result StreamSteps::Put(const DriverTable& driver, const KernelModule& module,
                        Stream stream) const {
  for (const auto& step : steps_) {
    Result code = kSuccess;
    if (const auto* copy = std::get_if<CopyStep>(&step)) {
      code = driver.copy_async(copy->to, copy->from, copy->bytes, stream);
    } else if (const auto* fill = std::get_if<FillStep>(&step)) {
      code = driver.fill_async(fill->to, fill->byte, fill->bytes, stream);
    } else {
      code = module.Put(std::get<LaunchList>(step), stream);
    }
    if (code != kSuccess) return code;
  }
  return kSuccess;
}

}  // namespace epd::cuda
