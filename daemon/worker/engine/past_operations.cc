#include "daemon/worker/engine/past_operations.h"

#include <algorithm>

#include "daemon/worker/engine/mixed_hash.h"
#include "proto/epd/v1/text.h"

namespace epd {
uint64_t FingerprintOf(const Announcement& said) {
  uint64_t hash = 0;
  for (const uint64_t word :
       {static_cast<uint64_t>(said.kind), uint64_t{said.dtype}, uint64_t{said.has_weights},
        uint64_t{said.top_k}, uint64_t{said.alignment}, said.row_bytes, said.plan_id,
        said.spec_hash}) {
    hash = Mixed(hash, word);
  }
  return hash;
}

PastOperation& PastOperations::Next(uint32_t rank) {
  std::unique_ptr<Ring>& ring = rings_[rank];
  if (ring == nullptr) {
    ring = std::make_unique<Ring>();
    ++num_callers_;
  }
  return ring->entries[ring->num_begun++ % kPastOperations];
}

void PastOperations::Add(uint32_t rank, const OperationKey& key, const std::string& name,
                         const Announcement& said, const Times& times) {
  PastOperation& entry = Next(rank);
  entry = PastOperation{.operation = {},
                        .key = key,
                        .kind = said.kind,
                        .fingerprint = FingerprintOf(said),
                        .state = PartState::kPulled,
                        .announced = times.announced,
                        .ended = times.ended};
  text::Cut(name, entry.name.size() - 1).copy(entry.name.data(), entry.name.size() - 1);
}

void PastOperations::Began(const Operation& operation, uint32_t rank, const Announcement& said,
                           absl::Time now) {
  PastOperation& entry = Next(rank);
  entry = PastOperation{.operation = operation.id,
                        .key = operation.key,
                        .kind = said.kind,
                        .fingerprint = FingerprintOf(said),
                        .announced = now};
  text::Cut(operation.name, entry.name.size() - 1).copy(entry.name.data(), entry.name.size() - 1);
}

// The newest entries first: an operation that ends is seldom older than a few.
void PastOperations::Ended(const Operation& operation, uint32_t rank, absl::StatusCode code,
                           absl::Time now) {
  Ring* ring = rings_[rank].get();
  if (ring == nullptr) return;
  const uint64_t num_kept = std::min<uint64_t>(ring->num_begun, kPastOperations);
  for (uint64_t i = 1; i <= num_kept; ++i) {
    PastOperation& entry = ring->entries[(ring->num_begun - i) % kPastOperations];
    if (entry.operation != operation.id) continue;
    if (entry.ended != absl::InfiniteFuture()) return;
    entry.state = operation.parts[rank].state;
    entry.code = code;
    entry.ended = now;
    return;
  }
}

std::vector<PastOperation> PastOperations::Newest(uint32_t rank, size_t max) const {
  std::vector<PastOperation> newest;
  const Ring* ring = rank < rings_.size() ? rings_[rank].get() : nullptr;
  if (ring == nullptr) return newest;
  const uint64_t num_shown = std::min<uint64_t>({ring->num_begun, kPastOperations, max});
  for (uint64_t i = 1; i <= num_shown; ++i) {
    newest.push_back(ring->entries[(ring->num_begun - i) % kPastOperations]);
  }
  return newest;
}

}  // namespace epd
