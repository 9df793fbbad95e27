// What texts that travel between client, epd and worker may hold. Protobuf refuses a whole message for one string that is
// no UTF-8, and logs and tables break at control characters: names are printable ASCII, without spaces where they are one
// word, and what only people read is made clean where it comes in.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
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

// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none (a cut or overlong one, a surrogate, or one
// beyond U+10FFFF).
constexpr std::string_view::size_type CharacterBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::string_view::size_type i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::string_view::size_type size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::string_view::size_type i = 1; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) > 0x9f;
  const bool beyond = first == 0xf4 && byte(1) > 0x8f;
  return overlong || surrogate || beyond ? 0 : size;
}

// The longest beginning of `text`, which is valid UTF-8, that has at most `max_bytes` bytes and no cut character.
constexpr std::string_view Cut(std::string_view text, std::string_view::size_type max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xc0) == 0x80) --max_bytes;
  return text.substr(0, max_bytes);
}

// What somebody else wrote, as text that every message, log and table takes: valid UTF-8 of at most `max_bytes` bytes, cut
// between two characters, with '?' for each control character and each byte that is no UTF-8.
inline std::string Clean(std::string_view text, std::string::size_type max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::string_view::size_type size = CharacterBytes(text);
    const bool shown = size > 1 || (size == 1 && IsPrintableByte(text.front()));
    const std::string_view next = shown ? text.substr(0, size) : std::string_view("?");
    if (clean.size() + next.size() > max_bytes) break;
    clean += next;
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return clean;
}

// A text in a field of fixed size, of shared memory for one: zero-terminated or, from hostile writers, not at all.
template <std::size_t kBytes>
std::string_view Read(const char (&field)[kBytes]) {
  return {field, strnlen(field, kBytes)};
}
// Cuts what does not fit before its terminating zero, between two characters. `Text` is a string or a view of any library.
template <typename Text, std::size_t kBytes>
void Write(const Text& text, char (&field)[kBytes]) {
  const std::string_view cut = Cut({text.data(), text.size()}, kBytes - 1);
  if (!cut.empty()) std::memcpy(field, cut.data(), cut.size());
  field[cut.size()] = '\0';
}

}  // namespace epd::text
