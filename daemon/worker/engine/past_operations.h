// The last operations of each rank, for `epctl why`: what it called, how far it came.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/worker/engine/operation.h"

namespace epd {

// Kept of each rank, open ones included.
inline constexpr size_t kPastOperations = 64;

struct PastOperation {
  OperationId operation;
  OperationKey key;
  std::array<char, 64> name{};  // Cut off; zero-terminated.
  shm::Kind kind = shm::Kind::kPrepare;
  uint64_t fingerprint = 0;
  PartState state = PartState::kAnnounced;  // The rank's last step before it ended.
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Time announced;
  absl::Time ended = absl::InfiniteFuture();  // The rank was told the end, or is gone.
};

// Equal for calls that agree; the same number on every node.
uint64_t FingerprintOf(const Announcement& said);

// A ring per rank that has called something. Nothing is allocated once a rank has its ring, so
// that it may be kept on the way of every operation. Not thread-safe.
class PastOperations {
 public:
  explicit PastOperations(size_t num_ranks) : rings_(num_ranks) {}

  void Began(const Operation& operation, uint32_t rank, const Announcement& said, absl::Time now);
  struct Times {
    absl::Time announced;
    absl::Time ended;
  };
  // One that ranks made for themselves, and that was good; it has no id.
  void Add(uint32_t rank, const OperationKey& key, const std::string& name,
           const Announcement& said, const Times& times);
  // `rank`'s part of `operation` ends in the state that it has, with `code`.
  void Ended(const Operation& operation, uint32_t rank, absl::StatusCode code, absl::Time now);

  size_t num_ranks() const { return rings_.size(); }
  size_t num_callers() const { return num_callers_; }  // Ranks that have called something.
  size_t bytes() const { return num_callers_ * sizeof(Ring); }
  // The newest first, at most `max` of them.
  std::vector<PastOperation> Newest(uint32_t rank, size_t max) const;

 private:
  struct Ring {
    uint64_t num_begun = 0;
    std::array<PastOperation, kPastOperations> entries;
  };
  PastOperation& Next(uint32_t rank);

  std::vector<std::unique_ptr<Ring>> rings_;  // [num_ranks]
  size_t num_callers_ = 0;
};

}  // namespace epd
