// A GPU as epd counts it, from how this process does.
#pragma once

#include <string>

namespace epd::client {

// `device`, a rank's, as its Join names it: "cuda:0", this process's ordinal, becomes the machine's,
// or "GPU-..." where `visible` (CUDA_VISIBLE_DEVICES, null: unset) names it so. Other words stay.
std::string MachineDevice(const std::string& device, const char* visible);

}  // namespace epd::client
