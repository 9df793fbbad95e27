// Arenas of the CPU backend: sealed memfds, mapped by the clients, read by peers through read-only
// descriptors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/backend/backend.h"
#include "daemon/core/unique_fd.h"

namespace epd {

// Sparse: address space is free, memory comes with Commit, but for the direct area behind it. The mode of each memfd is 0 once its
// read-only descriptor is open, so that a peer that gets only that one cannot open it for writing.
class MemfdArenas : public ArenaSet {
 public:
  // Each of `arena_bytes` rounded up to whole pages.
  //   RESOURCE_EXHAUSTED  descriptors or address space
  static absl::StatusOr<std::unique_ptr<MemfdArenas>> Create(int num_arenas, uint64_t arena_bytes);
  ~MemfdArenas() override;

  int num_arenas() const override { return static_cast<int>(arenas_.size()); }
  uint64_t arena_bytes() const override { return arena_bytes_; }
  absl::StatusOr<ArenaShare> Share(int arena) override;
  absl::Status Commit(uint64_t offset, uint64_t bytes) override;
  void Trim(uint64_t offset, uint64_t bytes) override;
  void LeavePages() override { leaves_pages_ = true; }
  absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const override;

  shm::DirectArea* Direct(int arena) override { return arenas_[arena].direct; }
  absl::StatusOr<char*> Map(int arena) override;

 private:
  struct Arena {
    UniqueFd read_write;
    UniqueFd read_only;
    char* mapped = nullptr;
    shm::DirectArea* direct = nullptr;
  };
  explicit MemfdArenas(uint64_t arena_bytes) : arena_bytes_(arena_bytes) {}
  absl::Status Add();
  absl::Status AddDirect(Arena& arena);

  uint64_t arena_bytes_;
  std::vector<Arena> arenas_;
  bool leaves_pages_ = false;
};

}  // namespace epd
