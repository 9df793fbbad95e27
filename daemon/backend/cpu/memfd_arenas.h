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
#include "daemon/shared_memory/page_guard.h"

namespace epd {

// Sparse: address space is free, memory comes as it is made, but for the direct area behind it. The mode of each memfd is 0 once its
// read-only descriptor is open, so that a peer that gets only that one cannot open it for writing. A landing arena is one memfd
// for several arenas, an equal part of it each; nobody meets in a set with one, and its arenas have no direct areas.
class MemfdArenas : public ArenaSet {
 public:
  // Each of `arena_bytes` rounded up to whole pages. `landing_of_arena`: as Backend::CreateArenas.
  // Nothing is there before MakeSome has said so.
  static std::unique_ptr<MemfdArenas> Plan(int num_arenas, uint64_t arena_bytes,
                                           const std::vector<int>& landing_of_arena);
  // Made whole.
  //   RESOURCE_EXHAUSTED  descriptors or address space
  static absl::StatusOr<std::unique_ptr<MemfdArenas>> Create(
      int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena = {});
  ~MemfdArenas() override;

  int num_arenas() const override { return static_cast<int>(arenas_.size()); }
  uint64_t arena_bytes() const override { return arena_bytes_; }
  absl::Status Ready() const override;
  bool MakeSome() override;
  absl::StatusOr<ArenaShare> Share(int arena) override;
  std::vector<FilePages> PagesOf(uint64_t offset, uint64_t bytes) const override;
  std::vector<FilePages> MeetingPages() const override;
  bool lost_pages() const override;
  bool DropSome() override;
  absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const override;

  shm::DirectTail* Direct(int arena) override { return arenas_[arena].direct; }
  absl::StatusOr<char*> Map(int arena) override;

 private:
  struct Memfd {
    UniqueFd read_write;
    UniqueFd read_only;
    uint64_t num_parts = 0;  // Arenas in it.
    char* mapped = nullptr;
    PageGuard guard = {};
  };
  struct Arena {
    size_t memfd = 0;  // In memfds_.
    uint64_t offset = 0;
    int landing = -1;
    shm::DirectTail* direct = nullptr;
    PageGuard guard = {};
  };
  explicit MemfdArenas(uint64_t arena_bytes) : arena_bytes_(arena_bytes) {}
  absl::Status MakeNext();
  bool is_whole() const { return num_made_ == memfds_.size() + num_direct(); }
  size_t num_direct() const { return direct_bytes_ == 0 ? 0 : arenas_.size(); }
  static void DropArena(Arena& arena);
  void DropMemfd(Memfd& memfd) const;
  absl::Status Make(Memfd& memfd) const;
  absl::Status AddDirect(Arena& arena);
  int FdOf(const Arena& arena) const { return memfds_[arena.memfd].read_write.get(); }
  uint64_t BytesOf(const Memfd& memfd) const { return memfd.num_parts * arena_bytes_; }

  uint64_t arena_bytes_;
  uint64_t direct_bytes_ = sizeof(shm::DirectTail);  // Behind each arena; 0: there are none.
  std::vector<Memfd> memfds_;
  std::vector<Arena> arenas_;
  size_t num_made_ = 0;     // Memfds, then direct areas.
  absl::Status problem_;    // Why it will not be whole.
  size_t num_dropped_ = 0;  // Arenas, then memfds.
};

}  // namespace epd
