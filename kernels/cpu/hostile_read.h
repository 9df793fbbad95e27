// Reading memory that another process may write at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace epd {

// One load: the value that is checked is the value that is used, because the compiler may not read
// a volatile twice. `p` is aligned to 4 bytes.
inline std::uint32_t ReadOnce(const void* p) {
  return *static_cast<const volatile std::uint32_t*>(p);
}

inline float ReadOnceFloat(const void* p) {
  const std::uint32_t bits = ReadOnce(p);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Copies a header out, word by word, for checks on the copy. Sizes are multiples of 4.
template <typename T>
inline T CopyOnce(const void* p) {
  static_assert(sizeof(T) % 4 == 0 && std::is_trivially_copyable_v<T>);
  std::uint32_t words[sizeof(T) / 4];
  for (std::size_t i = 0; i < sizeof(T) / 4; ++i) {
    words[i] = ReadOnce(static_cast<const std::uint32_t*>(p) + i);
  }
  T value;
  std::memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace epd
