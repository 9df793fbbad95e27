// What launch configurations depend on, asked of the device.
#pragma once

#include <string>

#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/launch.h"

namespace epd::cuda {

// Fills all of `shape` that a device knows. Returns the driver's first bad code.
Result ReadDeviceShape(const DriverTable& driver, Device device, DeviceShape* shape);

// The environment's variable, of clients and of epd, whose workers inherit it: rows of at least so many bytes move
// by bulk copies (bulk_mover.h), where the device has them and the memory for it.
inline constexpr char kBulkSetting[] = "EPD_CUDA_BULK_ROW_BYTES";

// Takes the variable's text, or null: rows never move so. Returns "", or what is wrong with it.
std::string ReadBulkSetting(const char* text, DeviceShape* shape);

}  // namespace epd::cuda
