// The bytes that a fuzzer chose, taken apart from the front.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

// Ends the process with what is wrong, so that the fuzzer keeps the input.
#define EPD_FUZZ_CHECK(condition)                                                  \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace epd::fuzz {

// After the last byte there are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T Take() {
    T value{};
    const size_t now = std::min(sizeof value, rest_.size());
    if (now > 0) std::memcpy(&value, rest_.data(), now);
    rest_.remove_prefix(now);
    return value;
  }
  // 0 <= value < limit.
  uint32_t Below(uint32_t limit) { return Take<uint8_t>() % limit; }
  // Up to 255 bytes.
  std::string Text() {
    const size_t wanted = Take<uint8_t>();
    const size_t now = std::min(wanted, rest_.size());
    const std::string text(rest_.substr(0, now));
    rest_.remove_prefix(now);
    return text;
  }
  std::string_view Rest() { return std::exchange(rest_, {}); }

 private:
  std::string_view rest_;
};

}  // namespace epd::fuzz
