#include "daemon/backend/cuda/staging/cuda_arenas.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

// Prepares whose counts are kept; they are read right after their move.
constexpr size_t kMaxKept = 1024;

}  // namespace

CudaArenas::~CudaArenas() {
  Left left = memory_.TakeAway();
  left.memory.insert(left.memory.begin(), arenas_.begin(), arenas_.end());
  abandon_(this, std::move(left));
}

absl::Status CudaArenas::Make() {
  while (static_cast<int>(arenas_.size()) < num_arenas_) {
    // Each is cleared in the stream; the next one is made once it is.
    const absl::StatusOr<DevicePointer> arena = device_.staging().Take(arena_bytes_);
    if (arena.ok()) {
      arenas_.push_back(*arena);
      continue;
    }
    if (!absl::IsFailedPrecondition(arena.status())) ready_ = arena.status();
    return arena.status();
  }
  if (absl::Status idle = device_.streams().CheckIdle(); !idle.ok()) return idle;
  ready_ = absl::OkStatus();
  return ready_;
}

MovePlaces CudaArenas::Places(int block) const {
  MovePlaces places = memory_.Places(block);
  places.arenas = arenas_;
  return places;
}

absl::StatusOr<ArenaShare> CudaArenas::Share(int arena) {
  if (!ready_.ok()) return ready_;
  while (shared_.size() < arenas_.size()) {
    absl::StatusOr<SharedArena> made = device_.staging().Share(arenas_[shared_.size()]);
    if (!made.ok()) return made.status();
    shared_.push_back(*std::move(made));
  }
  const SharedArena& shared = shared_[static_cast<size_t>(arena)];
  ArenaShare share;
  share.bytes = shared.bytes;
  share.device_uuid = device_.uuid();
  if (device_.staging().sharing() == Sharing::kIpcHandle) {
    share.sharing = ArenaSharing::kDeviceHandle;
    share.handle.assign(shared.handle.bytes, sizeof shared.handle.bytes);
    return share;
  }
  share.sharing = ArenaSharing::kDeviceDescriptor;
  share.read_write_fd = shared.fd.get();
  share.read_only_fd = shared.fd.get();
  return share;
}

void CudaArenas::KeepCounts(const MoveJob& prepare, const uint8_t* counts, uint32_t num_experts) {
  for (const MovePart& part : prepare.parts) {
    if (counts_.size() >= kMaxKept) counts_.clear();
    const uint8_t* const end = counts + num_experts * sizeof(int32_t);
    counts_[{part.arena, part.stage_offset}].assign(counts, end);
    counts = end;
  }
}

absl::Status CudaArenas::Read(int arena, uint64_t offset, absl::Span<char> out) const {
  const auto kept = counts_.find({arena, offset});
  if (kept == counts_.end() || kept->second.size() < out.size()) {
    return absl::DataLossError(
        absl::StrCat(out.size(), " bytes of device memory at ", offset, " were not copied here"));
  }
  std::copy_n(kept->second.begin(), out.size(), out.begin());
  return absl::OkStatus();
}

absl::StatusOr<char*> CudaArenas::Map(int) {
  return absl::UnimplementedError("device memory is not mapped into the worker's CPU");
}

}  // namespace epd::cuda
