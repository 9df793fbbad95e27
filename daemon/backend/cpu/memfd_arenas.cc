#include "daemon/backend/cpu/memfd_arenas.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

absl::Status Exhausted(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// False, with errno: there is no memory for it.
bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  int result = 0;
  do {
    result =
        EPD_FAILPOINT_CALL("worker.arena.no_space", ENOSPC,
                           fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemfdArenas>> MemfdArenas::Create(int num_arenas,
                                                                 uint64_t arena_bytes) {
  // A pool is of any size; the direct area behind its rows begins with a page.
  constexpr uint64_t kPage = alignof(shm::DirectArea);
  std::unique_ptr<MemfdArenas> set(new MemfdArenas((arena_bytes + kPage - 1) / kPage * kPage));
  for (int i = 0; i < num_arenas; ++i) {
    if (absl::Status added = set->Add(); !added.ok()) return added;
  }
  return set;
}

absl::Status MemfdArenas::Add() {
  Arena arena;
  arena.read_write =
      UniqueFd(EPD_FAILPOINT_CALL("worker.arena.no_memory", ENOMEM,
                                  memfd_create("epd-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int fd = arena.read_write.get();
  if (fd < 0) return Exhausted("memfd_create of a staging arena");
  if (ftruncate(fd, static_cast<off_t>(arena_bytes_ + sizeof(shm::DirectArea))) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted(absl::StrCat("a staging arena of ", arena_bytes_, " bytes of address space"));
  }
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  arena.read_only = UniqueFd(EPD_FAILPOINT_CALL("worker.arena.no_descriptor", EMFILE,
                                                open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (!arena.read_only.valid()) return Exhausted("a read-only descriptor of a staging arena");
  if (fchmod(fd, 0) != 0) return Exhausted("fchmod of a staging arena");
  arenas_.push_back(std::move(arena));
  return AddDirect(arenas_.back());
}

absl::Status MemfdArenas::AddDirect(Arena& arena) {
  const int fd = arena.read_write.get();
  if (!Allocate(fd, arena_bytes_, sizeof(shm::DirectArea)))
    return Exhausted("memory for a staging arena's direct area");
  void* mapped = mmap(nullptr, sizeof(shm::DirectArea), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(arena_bytes_));
  if (mapped == MAP_FAILED) return Exhausted("mapping a staging arena's direct area");
  madvise(mapped, sizeof(shm::DirectArea), MADV_DONTFORK);
  arena.direct = static_cast<shm::DirectArea*>(mapped);
  return absl::OkStatus();
}

// A client that maps an arena still would keep its pages, of which nobody knows any more. First the direct areas, whose
// records then do not stand any more: who still reads rows will know.
MemfdArenas::~MemfdArenas() {
  if (!leaves_pages_) {
    Trim(arena_bytes_, sizeof(shm::DirectArea));
    Trim(0, arena_bytes_);
  }
  for (Arena& arena : arenas_) {
    if (arena.direct != nullptr) munmap(arena.direct, sizeof(shm::DirectArea));
    if (arena.mapped != nullptr) munmap(arena.mapped, arena_bytes_);
  }
}

absl::StatusOr<ArenaShare> MemfdArenas::Share(int arena) {
  return ArenaShare{.sharing = ArenaSharing::kMemfd,
                    .bytes = arena_bytes_ + sizeof(shm::DirectArea),
                    .read_write_fd = arenas_[arena].read_write.get(),
                    .read_only_fd = arenas_[arena].read_only.get(),
                    .handle = {},
                    .device_uuid = {}};
}

absl::Status MemfdArenas::Commit(uint64_t offset, uint64_t bytes) {
  for (const Arena& arena : arenas_) {
    if (!Allocate(arena.read_write.get(), offset, bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the node has no memory for ", bytes, " bytes of staging on each of ",
                       arenas_.size(), " ranks (", std::strerror(errno),
                       "); free memory or raise its limit, or start epd with a smaller pool"));
    }
  }
  return absl::OkStatus();
}

void MemfdArenas::Trim(uint64_t offset, uint64_t bytes) {
  for (const Arena& arena : arenas_) {
    // What cannot be given back stays charged to the node; nothing else depends on it.
    [[maybe_unused]] const int ignored =
        fallocate(arena.read_write.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
}

absl::Status MemfdArenas::Read(int arena, uint64_t offset, absl::Span<char> out) const {
  if (offset > arena_bytes_ || out.size() > arena_bytes_ - offset) {
    return absl::DataLossError(absl::StrCat("reading ", out.size(), " bytes of staging at ", offset,
                                            ": the arena has ", arena_bytes_));
  }
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(arenas_[arena].read_write.get(), out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(absl::StrCat("reading ", out.size(), " bytes of staging at ",
                                              offset, ": ",
                                              got < 0 ? std::strerror(errno) : "end"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> MemfdArenas::Map(int index) {
  Arena& arena = arenas_[index];
  if (arena.mapped == nullptr) {
    void* mapped = mmap(nullptr, arena_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        arena.read_write.get(), 0);
    if (mapped == MAP_FAILED) return Exhausted("mapping a staging arena");
    madvise(mapped, arena_bytes_, MADV_DONTFORK);
    madvise(mapped, arena_bytes_, MADV_HUGEPAGE);
    arena.mapped = static_cast<char*>(mapped);
  }
  return arena.mapped;
}

}  // namespace epd
