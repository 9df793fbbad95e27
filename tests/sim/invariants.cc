#include "tests/sim/invariants.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace epd::sim {
namespace {

std::string Text(const Who& who) {
  return absl::StrCat(who.node, "/", who.incarnation, " session ", who.session);
}

}  // namespace

void Invariants::Fail(const std::string& invariant, const std::string& what) {
  if (violation_.empty()) violation_ = absl::StrCat(invariant, ": ", what);
}

void Invariants::CheckPlacement(Incarnation coordinator, GroupId group, Epoch epoch,
                                Formation formation, const GroupSpec& spec,
                                const std::vector<RankHolder>& members) {
  const auto [it, fresh] =
      started_.try_emplace({coordinator, group, formation}, Started{epoch, members, false, {}});
  const std::string where = absl::StrCat("group ", group.value, " formation ", formation.value);
  if (!fresh && it->second.epoch != epoch)
    Fail("one_epoch", absl::StrCat(where, " has two epochs"));
  if (!fresh && it->second.members != members)
    Fail("one_epoch", absl::StrCat(where, " has two placements"));
  std::map<Rank, WorkerId> places;
  for (const RankHolder& member : members) places[member.rank] = member.server();
  const auto [known, first] = places_of_epoch_.try_emplace({coordinator, spec.name, epoch}, places);
  if (!first && known->second != places) {
    Fail("one_epoch",
         absl::StrCat(where, ": epoch ", epoch.value, " has two maps from ranks to workers"));
  }
  for (const RankHolder& member : members) {
    if (wishes_.count({member.session, spec.name, spec.tenant}) > 0) continue;
    Fail("own_tenant", absl::StrCat(where, ", tenant \"", spec.tenant, "\", has session ",
                                    member.session.value, ", which did not ask for it"));
  }
}

void Invariants::SawWish(SessionId session, const GroupSpec& spec) {
  wishes_.insert({session, spec.name, spec.tenant});
}

void Invariants::CheckFirst(const std::string& who, const std::string& first,
                            const absl::Status& now) {
  if (first == now.ToString()) return;
  Fail("first_cause", absl::StrCat(who, " says ", now.ToString(), " after ", first));
}

void Invariants::SawReform(const std::string& node, uint64_t node_incarnation,
                           const NotifyReform& reform, Formation served) {
  if (absl::StrContains(reform.cause.message(), "forms again")) return;  // Nobody knows why yet.
  const Formation over = std::max(reform.formation, served);
  const auto [told, fresh] = told_cause_.try_emplace({node, node_incarnation, reform.group, over},
                                                     reform.cause.ToString());
  CheckFirst(node, told->second, reform.cause);
}

void Invariants::SawView(const ClusterView& view) {
  for (const GroupView& group : view.groups) {
    const bool over = group.state == GroupState::kReforming || group.state == GroupState::kDegraded;
    if (over && group.cause.ok())
      Fail("first_cause", absl::StrCat(group.spec.name, " is over, and nobody says why"));
    if (over) {
      const auto [cause, fresh] =
          first_cause_.try_emplace({view.coordinator, group.id}, group.cause.ToString());
      CheckFirst("the coordinator", cause->second, group.cause);
    }
    if (!group.epoch) continue;
    const auto [of, first] = communicator_of_.try_emplace(
        {view.coordinator, group.spec.name, group.epoch}, group.communicator);
    if (!first && of->second != group.communicator) {
      Fail("one_communicator", absl::StrCat("epoch ", group.epoch.value, " of ", group.spec.name,
                                            " has two communicators"));
    }
    const auto [name, fresh] =
        name_of_communicator_.try_emplace({view.coordinator, group.communicator}, group.spec.name);
    if (!fresh && name->second != group.spec.name)
      Fail("one_communicator", "two groups share a communicator");
  }
}

std::vector<RankHolder> Invariants::MembersOf(Incarnation coordinator, GroupId group,
                                              Formation formation) const {
  const auto it = started_.find({coordinator, group, formation});
  return it == started_.end() ? std::vector<RankHolder>() : it->second.members;
}

void Invariants::SawWorkerOf(const std::string& name, Rank rank, const WorkerName& worker) {
  worker_asked_[{name, rank}] = worker;
}

void Invariants::SawReady(const WorkerId& worker, GroupId group, Formation formation) {
  ready_.insert({worker, group, formation});
}

void Invariants::SawGroupReady(Incarnation coordinator, GroupId group, Formation formation) {
  first_cause_.erase({coordinator, group});
  for (const RankHolder& member : MembersOf(coordinator, group, formation)) {
    if (ready_.count({member.server(), group, formation}) > 0) continue;
    Fail("all_ready", absl::StrCat("group ", group.value, " formation ", formation.value,
                                   " is READY without ", ToString(member.server())));
  }
}

// It serves ranks, and those that asked for it.
void Invariants::CheckWorkers(const std::string& node, const StartTenant& start) {
  bool serves = false;
  for (const RankHolder& member : start.members) {
    serves = serves || member.server() == WorkerId{NodeId{node}, start.to};
    const auto asked = worker_asked_.find({start.spec.name, member.rank});
    if (asked == worker_asked_.end() || asked->second == member.worker) continue;
    Fail("own_worker",
         absl::StrCat(ToString(member.server()), " is to serve rank ", member.rank.value, " of ",
                      start.spec.name, ", which asked for ", ToString(asked->second)));
  }
  if (serves) return;
  Fail("own_worker", absl::StrCat(ToString(WorkerId{NodeId{node}, start.to}), " is told to serve ",
                                  start.spec.name, ", of which it has no rank"));
}

void Invariants::SawStartTenant(const std::string& node, uint64_t node_incarnation, uint64_t worker,
                                const StartTenant& start) {
  CheckWorkers(node, start);
  CheckPlacement(start.coordinator, start.group, start.epoch, start.formation, start.spec,
                 start.members.items());
  Started& started = started_.at({start.coordinator, start.group, start.formation});
  std::map<std::pair<Rank, ProgramId>, uint64_t> bases;
  for (const ExecutionBase& base : start.bases) bases[{base.rank, base.program}] = base.base;
  if (started.has_bases && started.bases != bases)
    Fail("cut_off", "nodes were told different bases");
  started.bases = bases;
  started.has_bases = true;
  CheckCut(start.coordinator, start.group, start.formation);
  const auto key = std::make_tuple(node, node_incarnation, worker, start.group);
  const auto told = told_worker_.find(key);
  if (told != told_worker_.end() &&
      (told->second.first >= start.formation || told->second.second > start.epoch)) {
    Fail("stale", absl::StrCat("the worker of ", node, " was told formation ",
                               start.formation.value, " after ", told->second.first.value));
  }
  told_worker_[key] = {start.formation, start.epoch};
}

void Invariants::SawDrained(SessionId session, GroupId group,
                            const std::vector<ExecutionCount>& counts) {
  for (const ExecutionCount& count : counts) {
    uint64_t& highest = begun_[{session, group, count.rank, count.program}];
    highest = std::max(highest, count.begun);
  }
}

// No rank is more than one failed call away from its peers.
void Invariants::CheckCut(Incarnation coordinator, GroupId group, Formation formation) {
  const Started& now = started_.at({coordinator, group, formation});
  for (const auto& [key, base] : now.bases) {
    const auto& [rank, program] = key;
    for (const RankHolder& member : now.members) {
      if (member.rank != rank) continue;
      const auto told = begun_.find({member.session, group, rank, program});
      const uint64_t begun = told == begun_.end() ? 0 : told->second;
      if (base <= begun + 1) continue;
      Fail("cut_off", absl::StrCat("group ", group.value, " formation ", formation.value, ": rank ",
                                   rank.value, " has begun ", begun, " and its base is ", base));
    }
  }
}

void Invariants::SawUniqueIdMade(GroupId group, Epoch epoch, const UniqueId& id) {
  const auto [it, fresh] = epoch_of_id_.try_emplace(id.bytes(), group, epoch);
  if (!fresh && it->second != std::make_pair(group, epoch))
    Fail("unique_id", "an id was made for two epochs");
}

void Invariants::SawInit(const InitCommunicator& init) {
  const auto [it, fresh] =
      id_of_epoch_.try_emplace({init.coordinator, init.group, init.epoch}, init.id.bytes());
  if (!fresh && it->second != init.id.bytes())
    Fail("unique_id", "two nodes of an epoch were given different ids");
  if (init.id.empty()) return;
  const auto made = epoch_of_id_.find(init.id.bytes());
  if (made == epoch_of_id_.end() || made->second != std::make_pair(init.group, init.epoch)) {
    Fail("unique_id", "a node was given an id of another epoch");
  }
}

void Invariants::SawJoined(const Who& who, const ReplyJoined& joined) {
  CheckPlacement(joined.coordinator, joined.group, joined.epoch, joined.formation, joined.spec,
                 joined.members.items());
  Epoch& last = joined_epoch_[{absl::StrCat(who.node, "/", who.incarnation), joined.spec.name}];
  if (joined.epoch < last) {
    Fail("one_epoch", absl::StrCat(Text(who), ": epoch of ", joined.spec.name, " went from ",
                                   last.value, " to ", joined.epoch.value));
  }
  last = joined.epoch;
  if (joined.members.size() != joined.spec.num_ranks) Fail("one_epoch", "Joined without all ranks");
}

void Invariants::SawJoinAsked(const Who& who, RequestId request) { joins_[{who, request}] = 0; }

void Invariants::SawJoinAnswered(const Who& who, RequestId request) {
  const auto it = joins_.find({who, request});
  if (it == joins_.end()) {
    Fail("answered_once", absl::StrCat(Text(who), " got an answer that it does not wait for"));
  } else if (++it->second > 1) {
    Fail("answered_once", absl::StrCat(Text(who), " got a second answer"));
  }
}

void Invariants::SawSessionEnd(const Who& who) {
  std::erase_if(joins_, [&](const auto& entry) { return entry.first.first == who; });
}

void Invariants::SawOrderAsked(const std::string& node, uint64_t incarnation, RequestId request) {
  orders_[{node, incarnation, request}] = 0;
}

void Invariants::SawOrderAnswered(const std::string& node, uint64_t incarnation,
                                  RequestId request) {
  const auto it = orders_.find({node, incarnation, request});
  if (it == orders_.end() || ++it->second > 1) {
    Fail("answered_once",
         absl::StrCat(node, ": request ", request.value, " was answered too often"));
  }
}

void Invariants::SawNodeEnd(const std::string& node, uint64_t incarnation) {
  std::erase_if(joins_, [&](const auto& entry) {
    return entry.first.first.node == node && entry.first.first.incarnation == incarnation;
  });
  std::erase_if(orders_, [&](const auto& entry) {
    return std::get<0>(entry.first) == node && std::get<1>(entry.first) == incarnation;
  });
}

void Invariants::SawHeld(Incarnation coordinator, GroupId group, Formation formation, Rank rank,
                         const Who& who) {
  const auto [it, fresh] = holder_.try_emplace({coordinator, group, formation, rank}, who);
  if (!fresh && it->second != who) {
    Fail("granted_once",
         absl::StrCat("group ", group.value, " formation ", formation.value, " rank ", rank.value,
                      " is held by ", Text(it->second), " and ", Text(who)));
  }
}

void Invariants::SawStaleDelivery(const std::string& what, size_t num_effects) {
  if (num_effects > 0) Fail("stale", absl::StrCat(what, " had ", num_effects, " effects"));
}

uint64_t Invariants::BaseOf(Incarnation coordinator, GroupId group, Formation formation, Rank rank,
                            const ProgramId& program) const {
  const auto it = started_.find({coordinator, group, formation});
  if (it == started_.end()) return 0;
  const auto base = it->second.bases.find({rank, program});
  return base == it->second.bases.end() ? 0 : base->second;
}

void Invariants::CheckAllAnswered() {
  for (const auto& [key, answers] : joins_) {
    if (answers == 0) Fail("answered_once", absl::StrCat(Text(key.first), " was never answered"));
  }
  for (const auto& [key, answers] : orders_) {
    if (answers == 0)
      Fail("answered_once", absl::StrCat(std::get<0>(key), " never answered an operator"));
  }
}

}  // namespace epd::sim
