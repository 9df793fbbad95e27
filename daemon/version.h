// The version of epd's binaries.
#pragma once

namespace epd {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace epd
