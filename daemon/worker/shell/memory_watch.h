// How much of the staging pool the limits of memory leave room for: those of this process's control group and the groups above
// it, and the machine's memory itself. They are lowered, and others use memory, while a worker runs; the kernel's own answer
// would be to kill somebody.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/machine/cgroup_limits.h"

namespace epd {

// What others are left of a limit of so many bytes: epd, its workers and clients.
uint64_t BytesForOthers(uint64_t limit_bytes);

// Of `budget_bytes`, what cannot be had where `present_bytes` of them are in memory and `limit` holds.
uint64_t ShortBytes(uint64_t budget_bytes, uint64_t present_bytes, const CgroupLimit& limit);

// Exec thread only. Time is passed in.
class MemoryWatch {
 public:
  MemoryWatch(uint64_t budget_bytes, ReadFile read)
      : budget_bytes_(budget_bytes), read_(std::move(read)) {}

  // Reads all limits. `present_bytes` of staging are in memory, or about to be.
  void Look(uint64_t present_bytes, absl::Time now);
  // Before `bytes` more are made, which `present_bytes` has in it.
  //   RESOURCE_EXHAUSTED  others would be left less than half of what is theirs: names the limit
  absl::Status MayMake(uint64_t bytes, uint64_t present_bytes, absl::Time now);

  // What of the pool cannot be had, and why.
  uint64_t short_bytes() const { return short_bytes_; }
  const std::string& why() const { return why_; }
  // When to look again: while there is too little.
  absl::Time next_look() const { return next_look_; }
  // A line for the log, at most one a minute.
  std::optional<std::string> TakeLine(absl::Time now);

 private:
  const uint64_t budget_bytes_;
  const ReadFile read_;
  std::optional<CgroupLimit> limit_;  // With the least room, as it was when it was looked at.
  uint64_t made_since_ = 0;           // Bytes.
  absl::Time looked_ = absl::InfinitePast();
  absl::Time next_look_ = absl::InfiniteFuture();
  uint64_t short_bytes_ = 0;
  std::string why_;
  bool said_ = true;
  absl::Time may_say_ = absl::InfinitePast();
};

}  // namespace epd
