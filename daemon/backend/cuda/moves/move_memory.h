// What moves use besides the regions: registered host memory, a block for each open move, and scratch
// memory on the device, which moves of one stream share, and moves of several streams do not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "daemon/backend/cuda/staging/peer_memory.h"

namespace epd::cuda {

// Memory can only be made and given back while the device is idle.
class MoveMemory {
 public:
  // What cannot be given back now; the device may still use the host pages.
  struct Left {
    std::vector<DevicePointer> memory;
    std::vector<std::pair<void*, size_t>> pages;
    std::vector<PeerMemory> peers = {};  // Of other workers.

    bool empty() const { return memory.empty() && pages.empty() && peers.empty(); }
  };

  enum class Scratch { kShared, kOfEachBlock };

  MoveMemory(CudaDevice& device, size_t num_blocks, Scratch kind = Scratch::kShared)
      : device_(device),
        num_scratches_(kind == Scratch::kShared ? 1 : num_blocks),
        blocks_(num_blocks) {}
  MoveMemory(const MoveMemory&) = delete;
  MoveMemory& operator=(const MoveMemory&) = delete;

  // Sees to it that a move of `room` can start in one of the blocks.
  //   FAILED_PRECONDITION  the device has work left; again once it is idle, or once a move has ended
  //   RESOURCE_EXHAUSTED   there is no memory for it
  absl::StatusOr<int> TakeBlock(const MoveRoom& room);
  void ReturnBlock(int block) { blocks_[static_cast<size_t>(block)].in_use = false; }
  // The same for whichever block, so that TakeBlock of no more room waits for a block at most. No move
  // may be open.
  absl::Status Reserve(const MoveRoom& room);
  bool Holds(const MoveRoom& room) const;
  // All but the arenas.
  MovePlaces Places(int block) const;
  // Everything; there is nothing any more.
  Left TakeAway();

 private:
  struct Block {
    uint8_t* host = nullptr;
    DevicePointer on_device = 0;
    size_t bytes = 0;
    bool in_use = false;
  };
  absl::Status Grow(Block& block, uint64_t bytes);
  absl::Status GrowScratch(uint64_t bytes);

  CudaDevice& device_;
  const size_t num_scratches_;
  DevicePointer scratch_ = 0;   // All, one behind the other.
  uint64_t scratch_bytes_ = 0;  // Of one.
  std::vector<Block> blocks_;
};

}  // namespace epd::cuda
