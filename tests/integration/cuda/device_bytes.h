// Buffers that calls in streams read and write: the host's memory, which a device reaches once it is registered. To
// the fake driver it is the device's anyway.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::testing {

// On pages of its own. A call may have more of it than `bytes`, but never less than one byte.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t num_bytes)
      : bytes(num_bytes), data(static_cast<uint8_t*>(std::aligned_alloc(kPage, Room()))) {
    Poison();
  }
  ~DeviceBytes() { std::free(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // Before a device's kernels see it, and after the last of them. With the device's context.
  cuda::Result Register(const cuda::DriverTable& driver) {
    const cuda::Result code = driver.host_register(
        data, Room(), cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
    if (code != cuda::kSuccess) return code;
    return driver.host_get_device_pointer(&address_, data, 0);
  }
  void Unregister(const cuda::DriverTable& driver) {
    if (address_ != 0) driver.host_unregister(data);
    address_ = 0;
  }
  // Where the device sees it; where the host does, if it was not registered.
  template <typename T>
  T* On() const {
    return address_ == 0 ? reinterpret_cast<T*>(data) : reinterpret_cast<T*>(address_);
  }

  // So that bytes which nobody wrote are seen.
  void Poison() { std::memset(data, 0xa5, Room()); }
  template <typename T>
  void Fill(const std::vector<T>& values) {
    std::memcpy(data, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> Copy() const {
    std::vector<T> values(bytes / sizeof(T));
    std::memcpy(values.data(), data, values.size() * sizeof(T));
    return values;
  }
  const size_t bytes;
  uint8_t* const data;

 private:
  static constexpr size_t kPage = 4096;
  size_t Room() const { return (bytes / kPage + 1) * kPage; }

  cuda::DevicePointer address_ = 0;
};

// The first element in which `got` is not `expected`, in words; bits count. "" if there is none.
template <typename T>
std::string Difference(const char* what, const DeviceBytes& got, const std::vector<T>& expected) {
  const std::vector<T> copy = got.Copy<T>();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&copy[i], &expected[i], sizeof(T)) == 0) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(copy[i]) +
           ", expected " + std::to_string(expected[i]);
  }
  return "";
}

}  // namespace epd::testing
