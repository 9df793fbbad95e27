#include "daemon/control/node/local_communicators.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace epd {

void LocalCommunicators::Update(const std::map<GroupId, CommunicatorUse>& used) {
  std::erase_if(communicators_, [&](const auto& entry) { return used.count(entry.first) == 0; });
  for (const auto& [id, use] : used) {
    Communicator& communicator = communicators_[id];
    communicator.id_stays = use.id_stays;
    if (!use.no_id_reason.empty()) communicator.no_id_reason = use.no_id_reason;
    for (const WorkerName& name : use.workers) {
      GroupWork& work = communicator.members[name].work;
      work.group = id;
      work.worker = name;
    }
    // Named, since clang 14 captures no structured binding.
    const auto& workers = use.workers;
    std::erase_if(communicator.members,
                  [&](const auto& entry) { return workers.count(entry.first) == 0; });
  }
}

void LocalCommunicators::Advance(GroupView& view) {
  const Epoch epoch = view.epoch;
  Communicator& communicator = communicators_.at(view.communicator);
  const auto can = [&](const WorkerName& name, const Member& member) {
    return workers_.IsUp(name) && epoch > member.work.fenced;
  };
  for (auto& [name, member] : communicator.members) {
    if (!can(name, member) || view.id_maker != name || member.id_asked >= epoch) continue;
    member.id_asked = epoch;
    outbox_.Add(MakeUniqueId{view.communicator, epoch, name});
  }
  if (!view.id_known) return;
  const UniqueId id = ChooseId(view, communicator);
  // Whoever made it has died, and with it the epoch.
  if (view.id_stays && id.empty() && view.no_id_reason.empty()) return;
  bool all = true;
  for (auto& [name, member] : communicator.members) {
    if (can(name, member) && member.init_asked < epoch) Initialise(view, id, name, communicator);
    all = all && member.init_asked >= epoch;
  }
  if (!all) return;
  // The workers have it; keep it no longer than needed.
  view.unique_id = UniqueId();
  for (auto& [name, member] : communicator.members) member.work.id = UniqueId();
}

const UniqueId& LocalCommunicators::ChooseId(const GroupView& view,
                                             const Communicator& communicator) {
  if (!view.id_stays || !view.no_id_reason.empty()) return view.unique_id;
  for (const auto& [name, member] : communicator.members) {
    if (member.work.id_epoch == view.epoch) return member.work.id;
  }
  return view.unique_id;
}

void LocalCommunicators::Initialise(const GroupView& view, const UniqueId& id,
                                    const WorkerName& name, Communicator& communicator) {
  Member& member = communicator.members.at(name);
  member.init_asked = view.epoch;
  if (communicator.id_checked < view.epoch) {
    communicator.id_checked = view.epoch;
    communicator.id_is_fresh = id.empty() || used_ids_.MarkUsed(id);
  }
  if (communicator.id_is_fresh) {
    outbox_.Add(InitCommunicator{link_.followed(), view.communicator, view.epoch, id,
                                 view.no_id_reason, name});
    return;
  }
  member.work.init_epoch = view.epoch;
  member.work.init_status = absl::AbortedError(
      absl::StrCat("node ", node_.value, " was given a unique id that it has used before"));
  outbox_.MarkChanged();
}

LocalCommunicators::Member* LocalCommunicators::Answering(Incarnation worker,
                                                          GroupId communicator) {
  const auto it = communicators_.find(communicator);
  if (it == communicators_.end()) return nullptr;
  for (auto& [name, member] : it->second.members) {
    if (workers_.IsRun(name, worker)) return &member;
  }
  return nullptr;
}

void LocalCommunicators::TakeId(const UniqueIdMade& event) {
  Member* member = Answering(event.worker, event.group);
  if (member == nullptr || member->id_asked != event.epoch || member->work.id_epoch == event.epoch)
    return;
  member->work.id_epoch = event.epoch;
  member->work.id_status = event.status;
  member->work.id = event.id;
  outbox_.MarkChanged();
}

void LocalCommunicators::TakeInitialised(const CommunicatorInitialised& event) {
  Member* member = Answering(event.worker, event.group);
  if (member == nullptr || member->init_asked != event.epoch ||
      member->work.init_epoch == event.epoch)
    return;
  member->work.init_epoch = event.epoch;
  member->work.init_status = event.status;
  member->work.init_sha256 = event.sha256;
  outbox_.MarkChanged();
}

void LocalCommunicators::ForgetWorker(const WorkerName& dead) {
  for (auto& [id, communicator] : communicators_) {
    const auto found = communicator.members.find(dead);
    if (found == communicator.members.end()) continue;
    Member& member = found->second;
    const Epoch fenced = std::max({member.work.fenced, member.id_asked, member.init_asked});
    member = Member{};
    member.work.group = id;
    member.work.worker = dead;
    member.work.fenced = fenced;
  }
}

void LocalCommunicators::Fence(GroupId communicator, const WorkerName& worker, Epoch epoch) {
  GroupWork& work = communicators_.at(communicator).members[worker].work;
  work.fenced = std::max(work.fenced, epoch);
}

bool LocalCommunicators::IsMember(GroupId communicator, const WorkerName& worker) const {
  return communicators_.at(communicator).members.count(worker) > 0;
}

bool LocalCommunicators::IsInitialised(GroupId communicator, const WorkerName& worker,
                                       Epoch epoch) const {
  const std::map<WorkerName, Member>& members = communicators_.at(communicator).members;
  const auto member = members.find(worker);
  return member != members.end() && member->second.work.init_epoch == epoch &&
         member->second.work.init_status.ok();
}

std::string LocalCommunicators::IdDigest(GroupId communicator, Epoch epoch) const {
  const Communicator& shared = communicators_.at(communicator);
  std::string digest;
  for (const auto& [name, member] : shared.members) {
    if (member.work.init_epoch != epoch || !epoch) continue;
    digest = member.work.init_sha256.empty() ? shared.no_id_reason
                                             : absl::BytesToHexString(member.work.init_sha256);
  }
  return digest;
}

void LocalCommunicators::PutInto(NodeReport& report) const {
  for (const auto& [id, communicator] : communicators_) {
    for (const auto& [name, member] : communicator.members) {
      report.work.push_back(member.work);
      if (communicator.id_stays) report.work.back().id = UniqueId();
    }
  }
}

}  // namespace epd
