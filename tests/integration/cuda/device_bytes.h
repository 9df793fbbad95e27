// Memory of the fake driver's device, which is the host's: buffers that calls in streams read and write.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace epd::testing {

// Aligned to 64 bytes; a call may have more of it than `bytes`, but never less than one byte.
struct DeviceBytes {
  explicit DeviceBytes(size_t num_bytes)
      : bytes(num_bytes), data(static_cast<uint8_t*>(std::aligned_alloc(64, Room()))) {
    Poison();
  }
  ~DeviceBytes() { std::free(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

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
  template <typename T>
  T* As() {
    return reinterpret_cast<T*>(data);
  }

  const size_t bytes;
  uint8_t* const data;

 private:
  size_t Room() const { return (bytes / 64 + 1) * 64; }
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
