#include "daemon/node/workers/direct_gates.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// What epd maps of an area: the gate stands at its start.
constexpr size_t kPage = alignof(shm::DirectArea);

}  // namespace

DirectGates::~DirectGates() {
  for (auto& [unused, pages] : groups_) Unmap(pages);
}

void DirectGates::Unmap(Pages& pages) {
  for (Page& page : pages) {
    page.guard = PageGuard();
    munmap(page.gate, kPage);
  }
}

absl::Status DirectGates::Map(UniqueFd fd, uint64_t offset, Pages& pages) {
  void* mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(),
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return absl::ResourceExhaustedError(std::strerror(errno));
  madvise(mapped, kPage, MADV_DONTFORK);
  pages.push_back({static_cast<std::atomic<uint64_t>*>(mapped), std::move(fd), offset,
                   PageGuard(mapped, kPage)});
  return absl::OkStatus();
}

absl::Status DirectGates::Put(const v1::TenantReady& ready, absl::Span<const UniqueFd> fds) {
  const GroupId group(ready.group_id());
  Forget(group);
  if (!ready.direct()) return absl::OkStatus();
  Pages& pages = groups_[group];
  for (int i = 0; i < ready.arenas_size(); ++i) {
    const uint64_t bytes = ready.arenas(i).bytes();
    const auto index = 2 * static_cast<size_t>(i);
    if (bytes < sizeof(shm::DirectArea) || index >= fds.size()) {
      return absl::InternalError(absl::StrCat("the worker says that arenas of ", bytes,
                                              " bytes end with a direct area, and sent ",
                                              fds.size(), " descriptors"));
    }
    UniqueFd own(fcntl(fds[index].get(), F_DUPFD_CLOEXEC, 0));
    const absl::Status mapped = Map(std::move(own), bytes - sizeof(shm::DirectArea), pages);
    if (!mapped.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "mapping the gate of rank ", ready.arenas(i).rank(), ": ", mapped.message()));
    }
  }
  return absl::OkStatus();
}

void DirectGates::Forget(GroupId group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  Unmap(found->second);
  groups_.erase(found);
}

void DirectGates::EndAll() {
  for (auto& [unused, pages] : groups_) {
    for (const Page& page : pages) {
      const uint64_t now = page.gate->load(std::memory_order_relaxed);
      shm::EndDirect(*page.gate, shm::GateGeneration(now) + 1);
    }
    Unmap(pages);
  }
  groups_.clear();
}

}  // namespace epd
