// What this epctl is.
#pragma once

namespace epd::cli {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace epd::cli
