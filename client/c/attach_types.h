// What members of the generated attach messages are, where nanopb's own types do not fit: attach.options says which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/status.h"

namespace epd::client {

enum class Executor : int32_t { kUnspecified = 0, kClient = 1, kWorker = 2 };

// How an arena is mapped; ArenaSharing of attach.proto.
enum class ArenaSharing : int32_t { kMemfd = 0, kDeviceDescriptor = 1, kDeviceHandle = 2 };

// Nanoseconds; 0 is "not set", since no wait of zero is of use.
using Duration = int64_t;

}  // namespace epd::client
