// What the store keeps about who coordinates a cluster.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/core/ids.h"

namespace epd {

// The value of the cluster's one coordinator key. `revision` is that of its last write: whoever
// writes for the cluster compares it, so a deposed coordinator can write nothing.
struct Leadership {
  std::string node;
  std::string address;      // host:port that other nodes dial.
  Incarnation incarnation;  // Of the epd.
  int64_t revision = 0;

  friend bool operator==(const Leadership&, const Leadership&) = default;
};

// Epochs above `floor` and up to `ceiling` belong to one leadership alone. The next one's floor is
// at least this ceiling, so epochs only grow from coordinator to coordinator.
struct EpochBlock {
  uint64_t floor = 0;
  uint64_t ceiling = 0;

  friend bool operator==(const EpochBlock&, const EpochBlock&) = default;
};

// What a coordinator wants its successors to know, by key; opaque here.
using KeptValues = std::map<std::string, std::string>;

inline constexpr uint64_t kEpochsPerLeadership = 1 << 20;

}  // namespace epd
