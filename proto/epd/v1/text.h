// What texts that travel between client, epd and worker may hold. Protobuf refuses strings that are no UTF-8, and logs and
// tables break at control characters: names are printable ASCII, without spaces where they are one word.
#pragma once

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

}  // namespace epd::text
