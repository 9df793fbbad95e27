#include "kernels/cuda/driver/device_words.h"

#include <cstdio>
#include <string_view>

namespace epd::cuda {

std::string IdOf(const DriverTable& driver, Device device) {
  Uuid uuid = {};
  if (driver.device_get_uuid(&uuid, device) != kSuccess) return "";
  // "NVIDIA H100 80GB HBM3 MIG 1g.10gb" is how the driver calls an instance; nothing else of it says so.
  char name[128] = {};
  driver.device_get_name(name, sizeof name - 1, device);
  std::string id = std::string_view(name).find(" MIG ") == std::string_view::npos ? "GPU" : "MIG";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const bool begins_part = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    char digits[4];
    std::snprintf(digits, sizeof digits, begins_part ? "-%02x" : "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    id += digits;
  }
  return id;
}

std::string WhyShutOut(int compute_mode, bool mps, const std::string& id) {
  std::string why;
  if (compute_mode == kComputeModeExclusiveProcess && !mps) {
    why =
        "it is in compute mode EXCLUSIVE_PROCESS, in which one process alone gets a context, and "
        "epd's worker and each client need one";
  } else if (compute_mode == kComputeModeProhibited) {
    why = "it is in compute mode PROHIBITED, in which no process gets a context";
  }
  if (why.empty()) return why;
  return why + "; set it to DEFAULT, as root: nvidia-smi -i " + id + " -c DEFAULT";
}

std::string DescribeNoContext(const DriverTable& driver, Device device, Result code) {
  int mode = 0;
  int mps = 0;
  driver.device_get_attribute(&mode, kAttributeComputeMode, device);
  driver.device_get_attribute(&mps, kAttributeMps, device);
  const std::string id = IdOf(driver, device);
  const std::string why = WhyShutOut(mode, mps != 0, id);
  return Describe(driver, "cuDevicePrimaryCtxRetain", code) +
         (why.empty() ? "" : "; of " + id + ": " + why);
}

}  // namespace epd::cuda
