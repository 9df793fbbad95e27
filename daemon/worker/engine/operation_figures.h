// How operations went, for people: counted as they go, told in a snapshot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/time_buckets.h"
#include "daemon/worker/engine/operation.h"
#include "proto/epd/v1/segment.h"

namespace epd {

struct KindCounts {
  struct PhaseTimes {
    absl::Duration sum;
    std::array<uint64_t, kNumTimeBuckets> counts{};
  };
  std::array<PhaseTimes, 5> phases;       // By Phase; kFailed has no end.
  std::array<uint64_t, 17> by_outcome{};  // By absl::StatusCode.
};

// What ranks waited for one of them, each time that it announced last.
struct WaitCounts {
  int64_t sum_ns = 0;
  std::array<uint64_t, kNumWaitBuckets> counts{};
};

// Of all operations since the start of the worker. Plain integers of the thread that runs the engine: counting allocates
// nothing and costs nanoseconds.
class OperationFigures {
 public:
  static constexpr size_t kKinds = static_cast<size_t>(shm::Kind::kCombineBackward) + 1;

  // The operation enters another phase than kFailed, or is over, after `spent` in the one that it has. Once all ranks have
  // announced, their waits for the last one are counted in its tenant, if this worker hears of all of them.
  void Leaves(const Operation& operation, absl::Duration spent);
  void Decided(const Operation& operation, absl::StatusCode outcome);

  // A good one that ranks made for themselves, `gathered` after the first of them had called.
  void CountDirect(shm::Kind kind, absl::Duration gathered);

  // [0]: of a kind that is none.
  const std::array<KindCounts, kKinds>& kinds() const { return kinds_; }

 private:
  KindCounts& Of(const Operation& operation);
  static void Add(absl::Duration spent, KindCounts::PhaseTimes& times);

  std::array<KindCounts, kKinds> kinds_;
};

}  // namespace epd
