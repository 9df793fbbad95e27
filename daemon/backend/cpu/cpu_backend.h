// The CPU backend: memfd arenas and the vectorised kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/cpu/move_thread.h"
#include "daemon/core/allowance.h"

namespace epd {

class CpuBackend : public Backend {
 public:
  // `simd`: "auto", or a level to force ("scalar", "avx2", "avx512").
  //   INVALID_ARGUMENT  no such level, or not on this machine
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const std::string& simd);

  std::string name() const override { return "cpu"; }
  std::string simd() const override;
  absl::StatusOr<std::unique_ptr<ArenaSet>> CreateArenas(
      int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena) override;
  // Moves little at once, on this thread, and much on another one.
  void StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                 absl::Time now) override;
  void CancelMove(MoveId id) override { move_thread_.Cancel(id); }
  absl::StatusOr<std::vector<MovedRows>> Poll(absl::Time now) override;
  bool busy() const override { return move_thread_.busy(); }
  void Rest() override { move_thread_.End(); }
  // The CPU needs no communicator; the id's length is checked all the same.
  absl::Status InitCommunicator(uint64_t group_id, uint64_t epoch,
                                const std::string& unique_id) override;

 private:
  CpuBackend() = default;

  // What is moved on the thread that answers everybody, in bytes that are read or written: others wait 0.2 ms for so much, and
  // that thread has some tenth less time for so much a second.
  static constexpr uint64_t kAtOnce = uint64_t{1} << 20;
  static constexpr uint64_t kAtOncePerSecond = uint64_t{512} << 20;

  std::vector<MovedRows> moved_;  // On this thread.
  Allowance at_once_{kAtOnce, kAtOncePerSecond};
  MoveThread move_thread_;
};

}  // namespace epd
