#include "daemon/backend/cpu/memfd_arenas.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// Arenas, or memfds: 0.3 ms.
constexpr int kAtOnce = 16;

absl::Status Exhausted(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

std::unique_ptr<MemfdArenas> MemfdArenas::Plan(int num_arenas, uint64_t arena_bytes,
                                               const std::vector<int>& landing_of_arena) {
  // A pool is of any size; the direct area behind its rows begins with a page.
  constexpr uint64_t kPage = alignof(shm::DirectTail);
  std::unique_ptr<MemfdArenas> set(new MemfdArenas((arena_bytes + kPage - 1) / kPage * kPage));
  std::map<int, size_t> memfd_of_landing;
  for (int i = 0; i < num_arenas; ++i) {
    const int landing = landing_of_arena.empty() ? -1 : landing_of_arena[static_cast<size_t>(i)];
    const size_t next = set->memfds_.size();
    const size_t memfd =
        landing < 0 ? next : memfd_of_landing.try_emplace(landing, next).first->second;
    if (memfd == next) set->memfds_.emplace_back();
    if (landing >= 0) set->direct_bytes_ = 0;
    Arena& arena = set->arenas_.emplace_back();
    arena.memfd = memfd;
    arena.landing = landing;
    arena.offset = set->memfds_[memfd].num_parts++ * set->arena_bytes_;
  }
  return set;
}

absl::StatusOr<std::unique_ptr<MemfdArenas>> MemfdArenas::Create(
    int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena) {
  std::unique_ptr<MemfdArenas> set = Plan(num_arenas, arena_bytes, landing_of_arena);
  while (set->MakeSome()) {
  }
  if (!set->problem_.ok()) return set->problem_;
  return set;
}

bool MemfdArenas::MakeSome() {
  for (int i = 0; i < kAtOnce && problem_.ok() && !is_whole(); ++i) problem_ = MakeNext();
  return problem_.ok() && !is_whole();
}

absl::Status MemfdArenas::MakeNext() {
  const size_t next = num_made_++;
  return next < memfds_.size() ? Make(memfds_[next]) : AddDirect(arenas_[next - memfds_.size()]);
}

absl::Status MemfdArenas::Ready() const {
  if (!problem_.ok() || is_whole()) return problem_;
  return absl::UnavailableError("the arenas are being made");
}

absl::Status MemfdArenas::Make(Memfd& memfd) const {
  memfd.read_write =
      UniqueFd(EPD_FAILPOINT_CALL("worker.arena.no_memory", ENOMEM,
                                  memfd_create("epd-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int fd = memfd.read_write.get();
  if (fd < 0) return Exhausted("memfd_create of a staging arena");
  if (ftruncate(fd, static_cast<off_t>(BytesOf(memfd) + direct_bytes_)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted(
        absl::StrCat("a staging arena of ", BytesOf(memfd), " bytes of address space"));
  }
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  memfd.read_only = UniqueFd(EPD_FAILPOINT_CALL("worker.arena.no_descriptor", EMFILE,
                                                open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (!memfd.read_only.valid()) return Exhausted("a read-only descriptor of a staging arena");
  if (fchmod(fd, 0) != 0) return Exhausted("fchmod of a staging arena");
  return absl::OkStatus();
}

absl::Status MemfdArenas::AddDirect(Arena& arena) {
  const int fd = FdOf(arena);
  errno = DoPageAction(PageAction::kMake,
                       {.fd = fd, .offset = arena_bytes_, .bytes = sizeof(shm::DirectTail)});
  if (errno != 0) return Exhausted("memory for a staging arena's direct area");
  void* mapped = mmap(nullptr, sizeof(shm::DirectTail), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(arena_bytes_));
  if (mapped == MAP_FAILED) return Exhausted("mapping a staging arena's direct area");
  madvise(mapped, sizeof(shm::DirectTail), MADV_DONTFORK);
  arena.direct = static_cast<shm::DirectTail*>(mapped);
  arena.direct->area.num_route_lines.store(shm::kRouteLines, std::memory_order_relaxed);
  arena.guard = PageGuard(mapped, sizeof(shm::DirectTail));
  return absl::OkStatus();
}

bool MemfdArenas::lost_pages() const {
  return std::any_of(arenas_.begin(), arenas_.end(),
                     [](const Arena& arena) { return arena.guard.lost(); }) ||
         std::any_of(memfds_.begin(), memfds_.end(),
                     [](const Memfd& memfd) { return memfd.guard.lost(); });
}

void MemfdArenas::DropArena(Arena& arena) {
  arena.guard = PageGuard();
  if (arena.direct != nullptr) munmap(arena.direct, sizeof(shm::DirectTail));
  arena.direct = nullptr;
}

void MemfdArenas::DropMemfd(Memfd& memfd) const {
  memfd.guard = PageGuard();
  if (memfd.mapped != nullptr) munmap(memfd.mapped, BytesOf(memfd));
  memfd = Memfd();
}

bool MemfdArenas::DropSome() {
  const size_t all = arenas_.size() + memfds_.size();
  for (int i = 0; i < kAtOnce && num_dropped_ < all; ++i) {
    const size_t next = num_dropped_++;
    if (next < arenas_.size()) {
      DropArena(arenas_[next]);
    } else {
      DropMemfd(memfds_[next - arenas_.size()]);
    }
  }
  return num_dropped_ < all;
}

MemfdArenas::~MemfdArenas() {
  while (DropSome()) {
  }
}

absl::StatusOr<ArenaShare> MemfdArenas::Share(int index) {
  const Arena& arena = arenas_[static_cast<size_t>(index)];
  const Memfd& memfd = memfds_[arena.memfd];
  const bool lands = arena.landing >= 0;
  return ArenaShare{.sharing = ArenaSharing::kMemfd,
                    .bytes = BytesOf(memfd) + direct_bytes_,
                    .read_write_fd = lands ? -1 : memfd.read_write.get(),
                    .read_only_fd = memfd.read_only.get(),
                    .handle = {},
                    .device_uuid = {},
                    .landing = arena.landing};
}

std::vector<FilePages> MemfdArenas::PagesOf(uint64_t offset, uint64_t bytes) const {
  std::vector<FilePages> pages;
  for (const Arena& arena : arenas_)
    pages.push_back({.fd = FdOf(arena), .offset = arena.offset + offset, .bytes = bytes});
  return pages;
}

std::vector<FilePages> MemfdArenas::MeetingPages() const {
  std::vector<FilePages> pages;
  for (const Arena& arena : arenas_) {
    if (arena.direct != nullptr)
      pages.push_back(
          {.fd = FdOf(arena), .offset = arena_bytes_, .bytes = sizeof(shm::DirectTail)});
  }
  return pages;
}

absl::Status MemfdArenas::Read(int index, uint64_t offset, absl::Span<char> out) const {
  if (offset > arena_bytes_ || out.size() > arena_bytes_ - offset) {
    return absl::DataLossError(absl::StrCat("reading ", out.size(), " bytes of staging at ", offset,
                                            ": the arena has ", arena_bytes_));
  }
  const Arena& arena = arenas_[static_cast<size_t>(index)];
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(FdOf(arena), out.data() + done, out.size() - done,
                              static_cast<off_t>(arena.offset + offset + done));
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
  const Arena& arena = arenas_[static_cast<size_t>(index)];
  Memfd& memfd = memfds_[arena.memfd];
  if (memfd.mapped == nullptr) {
    const uint64_t bytes = BytesOf(memfd);
    // A file without pages, where the arena's are to be gone.
    const UniqueFd none(EPD_FAILPOINT_FAILS("worker.arena.lost_pages")
                            ? memfd_create("epd-lost-pages", MFD_CLOEXEC)
                            : -1);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        none.valid() ? none.get() : memfd.read_write.get(), 0);
    if (mapped == MAP_FAILED) return Exhausted("mapping a staging arena");
    madvise(mapped, bytes, MADV_DONTFORK);
    madvise(mapped, bytes, MADV_HUGEPAGE);
    memfd.mapped = static_cast<char*>(mapped);
    memfd.guard = PageGuard(mapped, bytes);
  }
  return memfd.mapped + arena.offset;
}

}  // namespace epd
