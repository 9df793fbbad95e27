// What texts that travel between client, epd and worker may hold. Protobuf refuses strings that are no UTF-8, and logs and
// tables break at control characters: names are printable ASCII, without spaces where they are one word.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

namespace epd::text {

constexpr bool IsWordByte(char c) { return c > 0x20 && c < 0x7f; }
constexpr bool IsPrintableByte(char c) { return c >= 0x20 && c < 0x7f; }

// The first byte that `allowed` refuses, or the text's size.
constexpr std::string_view::size_type FindBad(std::string_view text, bool (*allowed)(char)) {
  std::string_view::size_type at = 0;
  while (at < text.size() && allowed(text[at])) ++at;
  return at;
}

constexpr bool IsWord(std::string_view text) { return FindBad(text, IsWordByte) == text.size(); }
constexpr bool IsPrintable(std::string_view text) {
  return FindBad(text, IsPrintableByte) == text.size();
}

// A text in a field of fixed size, of shared memory for one: zero-terminated or, from hostile writers, not at all.
template <std::size_t kBytes>
std::string_view Read(const char (&field)[kBytes]) {
  return {field, strnlen(field, kBytes)};
}
// Cuts what does not fit before its terminating zero. `Text` is a string or a view of any library.
template <typename Text, std::size_t kBytes>
void Write(const Text& text, char (&field)[kBytes]) {
  const std::size_t bytes = text.size() < kBytes ? text.size() : kBytes - 1;
  if (bytes != 0) std::memcpy(field, text.data(), bytes);
  field[bytes] = '\0';
}

}  // namespace epd::text
