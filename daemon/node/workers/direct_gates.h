// The gates of the areas in which ranks meet without their worker (proto/epd/v1/direct_area.h): epd ends them for a
// worker that is dead.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/shared_memory/page_guard.h"
#include "proto/epd/v1/direct_area.h"
#include "proto/epd/v1/handover.pb.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// Control thread. Maps one page per local rank of each group, read-write.
class DirectGates {
 public:
  DirectGates() = default;
  ~DirectGates();
  DirectGates(const DirectGates&) = delete;
  DirectGates& operator=(const DirectGates&) = delete;

  // Maps the gates of a formation's arenas; those of the group's earlier formation are dropped. `fds` as they came with
  // `ready`, two for each arena, the read-write one first. A formation without areas has none.
  //   RESOURCE_EXHAUSTED  address space or descriptors
  absl::Status Put(const v1::TenantReady& ready, absl::Span<const UniqueFd> fds);
  void Forget(GroupId group);

  // No rank publishes anything more, and nothing is left to be kept. After the worker was reaped and before any of its
  // calls is answered in its place.
  void EndAll();

  void Save(v1::HandoverWorker& out, OutgoingFds& fds) const;
  absl::Status Restore(const v1::HandoverWorker& in, IncomingFds& fds);

 private:
  // The first page of an area.
  struct Page {
    std::atomic<uint64_t>* gate = nullptr;
    UniqueFd fd;  // Of the arena; for the program that replaces this one.
    uint64_t offset = 0;
    PageGuard guard = {};
  };
  using Pages = std::vector<Page>;
  static absl::Status Map(UniqueFd fd, uint64_t offset, Pages& pages);
  static void Unmap(Pages& pages);

  std::map<GroupId, Pages> groups_;
};

}  // namespace epd
