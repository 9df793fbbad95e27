// Who waits for staging: operations that every rank has announced, in the order of their tickets.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/worker/engine/engine_limits.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"
#include "daemon/worker/staging/staging.h"

namespace epd {

// Gives regions: pages of the pool, or the stream region of a tenant. Whoever is first waits for regions that come back by
// themselves, or that are taken back from those behind it, and nobody overtakes it, so it is not starved. Who waits for a
// quota is overtaken by those that share none with it. An operation's
// ticket, staging_bytes, in_stream_region and region are written here alone. Not thread-safe.
class AdmissionQueue {
 public:
  explicit AdmissionQueue(Staging& staging, const EngineLimits& limits = {})
      : staging_(staging), limits_(limits) {}

  // Whether there can ever be a region of `bytes` for the operation, which all have announced. `pool` names the
  // pool for people.
  //   INVALID_ARGUMENT     some ranks call from a device's stream and others do not
  //   FAILED_PRECONDITION  ranks call from streams and there is no stream region
  //   RESOURCE_EXHAUSTED   it is too large, for the pool or a quota
  absl::Status CheckFits(Operation& operation, uint64_t bytes, absl::string_view pool) const;
  // Whether its tenant and their uid may have its region now.
  //   RESOURCE_EXHAUSTED   not yet: names quota, use and holder
  absl::Status CheckQuota(const Operation& operation) const;
  // What keeps it from its region, or from the pages of it.
  //   RESOURCE_EXHAUSTED  names what, and what to do
  absl::Status WhyItWaits(const Operation& operation) const;
  // Why pages of users are neither made nor given back, by uid.
  void SetPageProblems(std::map<uint32_t, std::string> problems) {
    page_problems_ = std::move(problems);
  }
  // What the tenant's operations hold of the pool, over all arenas here.
  uint64_t StagedBytes(const Tenant& tenant) const;

  void Add(Operation& operation, uint64_t bytes, const Ticket& ticket);
  // It waits no more, if it does.
  void Remove(Operation& operation);
  void FreeRegion(Operation& operation);

  // Something that operations wait for may have come back.
  void NoteChange() { changed_ = true; }
  // Whether Next may find something; forgets that it may.
  bool TakeChange() { return std::exchange(changed_, false); }
  bool changed() const { return changed_; }

  struct Grant {
    Operation* operation = nullptr;
    // It is the first and gets nothing now: what is behind it is to give regions back.
    bool blocked = false;
    Region commit;  // Not empty: pages that must be made first, after `trims`.
    std::vector<Trim> trims;
  };
  // The next operation to get its region, which it has when this returns; null: nobody gets anything now.
  std::optional<Grant> Next();
  // The pages of the operation's region exist.
  void PagesCommitted(const Operation& operation);

 private:
  bool GrantStreamRegion(Operation& operation);
  // Before its region is taken.
  void WantEagerBuffers(const Operation& operation);
  absl::Status CheckTenantQuota(const Operation& operation, uint64_t held) const;
  absl::Status CheckUidQuota(const Operation& operation, uint64_t held) const;
  absl::Status CheckUidMemory(const Operation& operation) const;
  uint64_t StagedBytes(uint32_t uid) const;

  Staging& staging_;
  const EngineLimits limits_;
  std::map<const Tenant*, uint64_t> staged_;  // Of the pool.
  std::deque<Operation*> queue_;
  std::set<const Tenant*> used_stream_regions_;
  std::map<uint32_t, std::string> page_problems_;
  bool changed_ = false;
};

}  // namespace epd
