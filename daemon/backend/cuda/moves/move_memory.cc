#include "daemon/backend/cuda/moves/move_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kScratchAlignment = 256;

}  // namespace

absl::Status MoveMemory::Grow(Block& block, uint64_t bytes) {
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

absl::Status MoveMemory::GrowScratch(uint64_t bytes) {
  if (scratch_bytes_ >= bytes) return absl::OkStatus();
  if (absl::Status idle = device_.streams().CheckIdle(); !idle.ok()) return idle;
  if (scratch_ != 0) {
    if (absl::Status gone = device_.staging().GiveBack(scratch_); !gone.ok()) return gone;
    scratch_ = 0;
    scratch_bytes_ = 0;
  }
  if (num_scratches_ > 1)
    bytes = (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  const absl::StatusOr<DevicePointer> scratch = device_.staging().Take(num_scratches_ * bytes);
  if (!scratch.ok()) return scratch.status();
  scratch_ = *scratch;
  scratch_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<int> MoveMemory::TakeBlock(const MoveRoom& room) {
  const auto free = std::find_if(blocks_.begin(), blocks_.end(),
                                 [](const Block& block) { return !block.in_use; });
  if (free == blocks_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(blocks_.size(), " operations of these arenas are open on the device"));
  }
  if (absl::Status grown = Grow(*free, room.host_bytes); !grown.ok()) return grown;
  if (absl::Status grown = GrowScratch(room.device_bytes); !grown.ok()) return grown;
  free->in_use = true;
  return static_cast<int>(free - blocks_.begin());
}

bool MoveMemory::Holds(const MoveRoom& room) const {
  return scratch_bytes_ >= room.device_bytes &&
         std::all_of(blocks_.begin(), blocks_.end(),
                     [&room](const Block& block) { return block.bytes >= room.host_bytes; });
}

absl::Status MoveMemory::Reserve(const MoveRoom& room) {
  for (Block& block : blocks_) {
    if (absl::Status grown = Grow(block, room.host_bytes); !grown.ok()) return grown;
  }
  return GrowScratch(room.device_bytes);
}

MovePlaces MoveMemory::Places(int index) const {
  const Block& block = blocks_[static_cast<size_t>(index)];
  const uint64_t scratch = static_cast<uint64_t>(index) % num_scratches_;
  return {.arenas = {},
          .device = scratch_ + scratch * scratch_bytes_,
          .host_on_device = block.on_device,
          .host = block.host};
}

MoveMemory::Left MoveMemory::TakeAway() {
  Left left;
  if (scratch_ != 0) left.memory.push_back(scratch_);
  scratch_ = 0;
  scratch_bytes_ = 0;
  for (Block& block : blocks_) {
    if (block.host != nullptr) left.pages.emplace_back(block.host, block.bytes);
    block = Block{};
  }
  return left;
}

}  // namespace epd::cuda
