// The arenas of one set of peer sessions in device memory, and what moves between them use besides.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/moves/move_memory.h"
#include "daemon/backend/cuda/moves/row_moves.h"

namespace epd::cuda {

// Memory can only be made and given back while the device is idle: until Make has said OK there is none,
// and a set that goes leaves what it had to `abandon`.
class CudaArenas : public ArenaSet {
 public:
  // Takes over memory that cannot be given back now.
  using Left = MoveMemory::Left;
  using Abandon = std::function<void(CudaArenas* set, Left left)>;

  CudaArenas(CudaDevice& device, int num_arenas, uint64_t arena_bytes, int stream, Abandon abandon)
      : device_(device),
        arena_bytes_(arena_bytes),
        stream_(stream),
        num_arenas_(num_arenas),
        memory_(device, kNumBlocks),
        abandon_(std::move(abandon)) {}
  ~CudaArenas() override;

  // Makes what is missing, as far as the device lets it now. OK: everything is there.
  //   FAILED_PRECONDITION  the device has work left; again once it is idle
  //   anything else        there will be no arenas; Ready says the same from now on
  absl::Status Make();
  // Of the moves within this worker, all in stream(), so that they can share the scratch memory.
  absl::StatusOr<int> TakeBlock(const MoveRoom& room) { return memory_.TakeBlock(room); }
  void ReturnBlock(int block) { memory_.ReturnBlock(block); }
  MovePlaces Places(int block) const;
  // Keeps what the ranks of a prepare have staged, so that Read finds it. `counts`: int32 [num_ranks, num_experts].
  void KeepCounts(const MoveJob& prepare, const uint8_t* counts, uint32_t num_experts);
  int stream() const { return stream_; }
  const std::vector<DevicePointer>& arenas() const { return arenas_; }

  int num_arenas() const override { return num_arenas_; }
  uint64_t arena_bytes() const override { return arena_bytes_; }
  absl::Status Ready() const override { return ready_; }
  absl::StatusOr<ArenaShare> Share(int arena) override;
  // The memory is there from the start, and stays.
  // Only what KeepCounts was given: this thread waits for no copy.
  absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const override;
  //   UNIMPLEMENTED  no CPU maps a device's memory
  absl::StatusOr<char*> Map(int arena) override;

 private:
  static constexpr size_t kNumBlocks = 4;

  CudaDevice& device_;
  const uint64_t arena_bytes_;
  const int stream_;
  const int num_arenas_;
  MoveMemory memory_;
  const Abandon abandon_;
  absl::Status ready_ = absl::UnavailableError("the arenas are being made");
  std::vector<DevicePointer> arenas_;
  std::vector<SharedArena> shared_;
  std::map<std::pair<int, uint64_t>, std::vector<char>> counts_;
};

}  // namespace epd::cuda
