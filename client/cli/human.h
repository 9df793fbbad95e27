// Numbers as people read them: "1.5 GiB", "3 min 20 s", "12,345".
#pragma once

#include <google/protobuf/duration.pb.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace epd::cli {

// 0 -> "0 B", 1536 -> "1.5 KiB". At most one decimal, binary units.
std::string HumanBytes(uint64_t bytes);

// 0.0042 s -> "4 ms", 75 s -> "1m15s", 90,000 s -> "1d1h": the two largest units. Negative times
// read as 0.
std::string HumanDuration(absl::Duration duration);
std::string HumanDuration(const google::protobuf::Duration& duration);
absl::Duration ToDuration(const google::protobuf::Duration& duration);

// Groups of three digits.
std::string HumanCount(uint64_t count);

// "" for 0, which stands for what is not known.
std::string NonZero(uint64_t number);

// {0,1,2,3,7} -> "0-3,7"; empty -> "-".
std::string HumanRanges(const std::vector<uint32_t>& sorted);

// `text`, or its first characters and "..." if it is longer than `max_bytes` (at least 3).
std::string Shortened(const std::string& text, size_t max_bytes);

}  // namespace epd::cli
