// The bytes that stand for a program, or for the name of a call, when ranks compare them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace epd::client {

using Digest = std::array<uint8_t, 16>;

// The same on every machine.
Digest DigestOf(std::string_view text);

}  // namespace epd::client
