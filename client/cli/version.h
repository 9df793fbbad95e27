// What this epctl is.
#pragma once

#include <cstdint>

#include "proto/epd/v1/limits.h"

namespace epd::cli {

inline constexpr char kVersion[] = "0.1.0";

// Of the attach protocol, which versions all of epd's interfaces together.
inline constexpr uint32_t kMinProtocolVersion = 1;

}  // namespace epd::cli
