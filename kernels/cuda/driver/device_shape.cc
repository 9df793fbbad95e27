#include "kernels/cuda/driver/device_shape.h"

#include <charconv>
#include <string_view>

namespace epd::cuda {

Result ReadDeviceShape(const DriverTable& driver, Device device, DeviceShape* shape) {
  int major = 0;
  int minor = 0;
  const struct {
    int attribute;
    int* value;
  } all[] = {{kAttributeMultiprocessors, &shape->num_sms},
             {kAttributeComputeMajor, &major},
             {kAttributeComputeMinor, &minor},
             {kAttributeMaxSharedBytesOptIn, &shape->max_shared_bytes}};
  for (const auto& one : all) {
    const Result code = driver.device_get_attribute(one.value, one.attribute, device);
    if (code != kSuccess) return code;
  }
  shape->compute_capability = 10 * major + minor;
  return kSuccess;
}

std::string ReadBulkSetting(const char* text, DeviceShape* shape) {
  if (text == nullptr || *text == '\0') return "";
  const std::string_view all = text;
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), bytes);
  if (error != std::errc() || end != all.data() + all.size() || bytes < 1) {
    return std::string(kBulkSetting) + ": got '" + text +
           "', expected a number of bytes, at least 1; unset it, and rows move as before";
  }
  shape->min_bulk_row_bytes = bytes;
  return "";
}

}  // namespace epd::cuda
