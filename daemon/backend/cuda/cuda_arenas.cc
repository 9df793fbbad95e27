#include "daemon/backend/cuda/cuda_arenas.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

constexpr size_t kPage = 4096;
// Prepares whose counts are kept; they are read right after their move.
constexpr size_t kMaxKept = 1024;

}  // namespace

CudaArenas::~CudaArenas() {
  Left left;
  left.memory = arenas_;
  if (scratch_ != 0) left.memory.push_back(scratch_);
  for (const Block& block : blocks_) {
    if (block.host != nullptr) left.pages.emplace_back(block.host, block.bytes);
  }
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

absl::Status CudaArenas::Grow(Block& block, uint64_t bytes) {
  if (block.bytes >= bytes) return absl::OkStatus();
  if (absl::Status idle = device_.streams().CheckIdle(); !idle.ok()) return idle;
  if (block.host != nullptr) {
    device_.driver().host_unregister(block.host);
    munmap(block.host, block.bytes);
    block = Block{};
  }
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  void* pages = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mmap of ", rounded, " bytes: ", std::strerror(errno)));
  }
  madvise(pages, rounded, MADV_DONTFORK);
  const DriverTable& driver = device_.driver();
  Result code =
      driver.host_register(pages, rounded, kHostRegisterPortable | kHostRegisterDeviceMap);
  if (code == kSuccess) {
    block.host = static_cast<uint8_t*>(pages);
    block.bytes = rounded;
    code = driver.host_get_device_pointer(&block.on_device, pages, 0);
    if (code == kSuccess) return absl::OkStatus();
    return absl::InternalError(Describe(driver, "cuMemHostGetDevicePointer", code));
  }
  munmap(pages, rounded);
  return absl::ResourceExhaustedError(Describe(driver, "cuMemHostRegister", code));
}

absl::Status CudaArenas::GrowScratch(uint64_t bytes) {
  if (scratch_bytes_ >= bytes) return absl::OkStatus();
  if (absl::Status idle = device_.streams().CheckIdle(); !idle.ok()) return idle;
  if (scratch_ != 0) {
    if (absl::Status gone = device_.staging().GiveBack(scratch_); !gone.ok()) return gone;
    scratch_ = 0;
    scratch_bytes_ = 0;
  }
  const absl::StatusOr<DevicePointer> scratch = device_.staging().Take(bytes);
  if (!scratch.ok()) return scratch.status();
  scratch_ = *scratch;
  scratch_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<int> CudaArenas::TakeBlock(const MoveRoom& room) {
  const auto free = std::find_if(blocks_.begin(), blocks_.end(),
                                 [](const Block& block) { return !block.in_use; });
  if (free == blocks_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kNumBlocks, " operations of these arenas are open on the device"));
  }
  if (absl::Status grown = Grow(*free, room.host_bytes); !grown.ok()) return grown;
  if (absl::Status grown = GrowScratch(room.device_bytes); !grown.ok()) return grown;
  free->in_use = true;
  return static_cast<int>(free - blocks_.begin());
}

MovePlaces CudaArenas::Places(int index) const {
  const Block& block = blocks_[static_cast<size_t>(index)];
  return {
      .arenas = arenas_, .device = scratch_, .host_on_device = block.on_device, .host = block.host};
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

void CudaArenas::KeepCounts(int arena, uint64_t offset, absl::Span<const char> counts) {
  if (counts_.size() >= kMaxKept) counts_.clear();
  counts_[{arena, offset}].assign(counts.begin(), counts.end());
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
