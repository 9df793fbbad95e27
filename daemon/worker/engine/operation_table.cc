#include "daemon/worker/engine/operation_table.h"

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

uint64_t RecordSlot(uint64_t id) { return id % shm::kMaxOperations; }

}  // namespace

Operation& OperationTable::Open(Tenant& tenant, const OperationKey& key, std::string name,
                                absl::Time now) {
  while (record_slots_.contains(RecordSlot(next_id_))) ++next_id_;
  const OperationId id(next_id_++);
  record_slots_.insert(RecordSlot(id.value));
  auto operation = std::make_unique<Operation>();
  operation->id = id;
  operation->tenant = &tenant;
  operation->key = key;
  operation->name = std::move(name);
  operation->parts.resize(tenant.start.spec.num_ranks);
  for (uint32_t r = 0; r < operation->parts.size(); ++r) {
    if (!tenant.leads() && !tenant.local(r)) operation->parts[r].state = PartState::kDone;
  }
  operation->first_announce = now;
  operation->phase_since = now;
  by_key_[&tenant][key] = operation.get();
  by_tenant_[&tenant][id] = operation.get();
  ++tenant.num_open;
  ++num_of_uid_[tenant.uid];
  num_parts_of_uid_[tenant.uid] += operation->parts.size();
  return *by_id_.emplace(id, std::move(operation)).first->second;
}

void OperationTable::GiveUpKey(const Operation& operation) {
  const auto keys = by_key_.find(operation.tenant);
  if (keys == by_key_.end()) return;
  const auto found = keys->second.find(operation.key);
  if (found == keys->second.end() || found->second != &operation) return;
  keys->second.erase(found);
  if (keys->second.empty()) by_key_.erase(keys);
}

void OperationTable::Close(Operation& operation) {
  SetDeadline(operation, absl::InfiniteFuture());
  GiveUpKey(operation);
  const auto of_tenant = by_tenant_.find(operation.tenant);
  of_tenant->second.erase(operation.id);
  if (of_tenant->second.empty()) by_tenant_.erase(of_tenant);
  record_slots_.erase(RecordSlot(operation.id.value));
  --operation.tenant->num_open;
  const auto of_uid = num_of_uid_.find(operation.tenant->uid);
  if (--of_uid->second == 0) num_of_uid_.erase(of_uid);
  const auto parts_of_uid = num_parts_of_uid_.find(operation.tenant->uid);
  parts_of_uid->second -= operation.parts.size();
  if (parts_of_uid->second == 0) num_parts_of_uid_.erase(parts_of_uid);
  by_id_.erase(operation.id);
}

Operation* OperationTable::Find(OperationId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

Operation* OperationTable::Find(const Tenant& tenant, const OperationKey& key) const {
  const auto keys = by_key_.find(&tenant);
  if (keys == by_key_.end()) return nullptr;
  const auto found = keys->second.find(key);
  return found == keys->second.end() ? nullptr : found->second;
}

std::vector<Operation*> OperationTable::FindUndecided(const Tenant& tenant) const {
  std::vector<Operation*> undecided;
  const auto keys = by_key_.find(&tenant);
  if (keys == by_key_.end()) return undecided;
  for (const auto& [unused, operation] : keys->second) {
    if (operation->undecided()) undecided.push_back(operation);
  }
  return undecided;
}

std::vector<Operation*> OperationTable::FindUndecided(const Tenant& tenant,
                                                      const Execution& execution) const {
  std::vector<Operation*> undecided;
  const auto keys = by_key_.find(&tenant);
  if (keys == by_key_.end()) return undecided;
  const OperationKey first{.execution = execution};
  for (auto it = keys->second.lower_bound(first); it != keys->second.end(); ++it) {
    if (it->first.execution != execution) break;
    if (it->second->undecided()) undecided.push_back(it->second);
  }
  return undecided;
}

std::vector<Operation*> OperationTable::FindOpen(const Tenant& tenant) const {
  std::vector<Operation*> open;
  const auto found = by_tenant_.find(&tenant);
  if (found == by_tenant_.end()) return open;
  for (const auto& [unused, operation] : found->second) open.push_back(operation);
  return open;
}

absl::Status OperationTable::CheckRoom(const Tenant& tenant) const {
  const auto of_uid = num_of_uid_.find(tenant.uid);
  if (of_uid != num_of_uid_.end() && of_uid->second >= limits_.operations_per_uid) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenants of uid ", tenant.uid, " have ", of_uid->second,
                     " operations open, ", tenant.num_open,
                     " of them this one's, the most that one uid may have on a node "
                     "(max_operations_per_uid); wait for some to end, or have the setting raised"));
  }
  const auto found = num_parts_of_uid_.find(tenant.uid);
  const size_t parts = found == num_parts_of_uid_.end() ? 0 : found->second;
  if (parts + tenant.num_ranks() > kMaxPartsOfUid) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the open operations of uid ", tenant.uid, " have ", parts, " ranks, one more would add ",
        tenant.num_ranks(), ", and the most that one uid may have on a node is ", kMaxPartsOfUid,
        "; wait for some to end"));
  }
  if (by_id_.size() < max_open_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(max_open_, " operations are open on this node, the most there may be"));
}

absl::Status OperationTable::CheckRoomFor(SessionId session) const {
  const auto parts = num_parts_.find(session);
  if (parts == num_parts_.end() || parts->second < limits_.operations_per_session)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("session ", session.value, " has ", parts->second,
                   " operations open, the most there may be (max_operations_per_session); wait for "
                   "some to end"));
}

void OperationTable::PartIsOver(SessionId session) {
  const auto parts = num_parts_.find(session);
  if (parts != num_parts_.end()) --parts->second;
}

void OperationTable::SetDeadline(Operation& operation, absl::Time deadline) {
  if (operation.deadline != absl::InfiniteFuture()) {
    deadlines_.erase({operation.deadline, operation.id});
  }
  operation.deadline = deadline;
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, operation.id);
}

absl::Time OperationTable::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

Operation* OperationTable::FindDue(absl::Time now) const {
  return next_deadline() <= now && !deadlines_.empty() ? Find(deadlines_.begin()->second) : nullptr;
}

}  // namespace epd
