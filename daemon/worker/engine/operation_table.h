// The open operations of a worker: by id, by key, by deadline, and how many a session takes part in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/engine_limits.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// Owns operations, from their first announce until nobody copies or reads. Ids grow and leave out those whose
// outcome record (id % kMaxOperations) an open operation has. Reads no clock. Not thread-safe.
class OperationTable {
 public:
  using ById = std::map<OperationId, std::unique_ptr<Operation>>;

  OperationTable(uint64_t first_id, size_t max_open, const EngineLimits& limits = {})
      : next_id_(first_id), max_open_(max_open), limits_(limits) {}

  // An operation that gathers. Parts whose announces this worker will not hear of are done.
  Operation& Open(Tenant& tenant, const OperationKey& key, std::string name, absl::Time now);
  // Later announces of its key are of another operation.
  void GiveUpKey(const Operation& operation);
  // Destroys it.
  void Close(Operation& operation);

  Operation* Find(OperationId id) const;
  // One that has failed is not found.
  Operation* Find(const Tenant& tenant, const OperationKey& key) const;
  // In the order of their keys.
  std::vector<Operation*> FindUndecided(const Tenant& tenant) const;
  // Those of one execution: others, of which a tenant may have thousands, are not looked at.
  std::vector<Operation*> FindUndecided(const Tenant& tenant, const Execution& execution) const;
  // Decided or not, in the order of their ids.
  std::vector<Operation*> FindOpen(const Tenant& tenant) const;
  const ById& all() const { return by_id_; }

  // Calls of ranks that the open operations of one uid have room for, with those of other workers: 170 bytes each.
  static constexpr size_t kMaxPartsOfUid = size_t{512} << 10;
  //   RESOURCE_EXHAUSTED  max_open operations are open, or as many of the tenant's uid as one may have, or kMaxPartsOfUid
  absl::Status CheckRoom(const Tenant& tenant) const;
  //   RESOURCE_EXHAUSTED  the session takes part in as many as one may
  absl::Status CheckRoomFor(SessionId session) const;
  // By session: operations that it takes part in, and is not over.
  const std::map<SessionId, size_t>& num_parts() const { return num_parts_; }
  // Of open operations; those with none are left out.
  const std::map<uint32_t, size_t>& num_of_uid() const { return num_of_uid_; }
  void CountPart(SessionId session) { ++num_parts_[session]; }
  void PartIsOver(SessionId session);
  // Its parts are over, all at once.
  void ForgetSession(SessionId session) { num_parts_.erase(session); }

  // absl::InfiniteFuture(): none.
  void SetDeadline(Operation& operation, absl::Time deadline);
  absl::Time next_deadline() const;
  // One whose deadline is `now` or before; null: there is none.
  Operation* FindDue(absl::Time now) const;

 private:
  ById by_id_;
  std::map<const Tenant*, std::map<OperationKey, Operation*>>
      by_key_;  // Those that have not failed.
  std::map<const Tenant*, std::map<OperationId, Operation*>> by_tenant_;
  std::set<std::pair<absl::Time, OperationId>> deadlines_;
  std::set<uint64_t> record_slots_;
  std::map<SessionId, size_t> num_parts_;  // In operations, and not over.
  std::map<uint32_t, size_t> num_of_uid_;
  std::map<uint32_t, size_t> num_parts_of_uid_;  // Of open operations.
  uint64_t next_id_;
  const size_t max_open_;
  const EngineLimits limits_;
};

}  // namespace epd
