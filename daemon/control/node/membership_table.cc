#include "daemon/control/node/membership_table.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/node/join_check.h"
#include "daemon/core/check.h"

namespace epd {
namespace {

bool Contains(const std::vector<Rank>& ranks, Rank rank) {
  return absl::c_linear_search(ranks, rank);
}

}  // namespace

absl::Status MembershipTable::Join(const JoinRequested& event, const SessionAttached& client) {
  if (absl::Status status = CheckJoin(event, workers_); !status.ok()) return status;
  if (absl::Status status = CheckSession(event, HeldBy(event.session)); !status.ok()) return status;
  if (absl::Status status = index_.CheckUid(members_, event, client.uid); !status.ok())
    return status;
  const auto [place, fresh] = members_.try_emplace({event.session, event.request});
  SessionMembership& member = place->second;
  if (!fresh) index_.Forget(member);  // Of a request id that the session uses again.
  member = SessionMembership{};
  member.uid = client.uid;
  member.deadline = event.deadline;
  member.waits_for = absl::UnavailableError("the coordinator");
  Claim& claim = member.claim;
  claim.session = event.session;
  claim.request = event.request;
  claim.host = client.host;
  claim.pid = client.pid;
  claim.client_name = client.name;
  claim.client_version = client.version;
  claim.started = client.started;
  claim.spec = event.spec;
  claim.ranks = event.ranks;
  claim.workers = event.workers;
  claim.min_epoch = event.min_epoch;
  claim.proposed = event.proposed;
  index_.Add(member);
  outbox_.MarkChanged();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LostMember>> MembershipTable::Leave(const LeaveRequested& event) {
  bool found = false;
  std::vector<LostMember> lost;
  for (SessionMembership* member : HeldBy(event.session)) {
    const Claim& claim = member->claim;
    if (claim.group != event.group) continue;
    found = true;
    if (member->state == MembershipState::kWaiting) {
      outbox_.Add(
          ReplyFailed{claim.session, claim.request,
                      absl::AbortedError(absl::StrCat("group=", Title(claim.spec),
                                                      ": the session left while joining"))});
    }
    Lose(*member, MembershipEvent::kLeave, event.why, lost);
  }
  if (found) return lost;
  return absl::NotFoundError(
      absl::StrCat("this session is no member of group id ", event.group.value));
}

std::vector<LostMember> MembershipTable::Drop(SessionId session, const absl::Status& reason) {
  std::vector<LostMember> lost;
  for (SessionMembership* member : HeldBy(session))
    Lose(*member, MembershipEvent::kGone, reason, lost);
  return lost;
}

absl::Status MembershipTable::TakeDrained(const SessionDrained& event) {
  for (SessionMembership* held : HeldBy(event.session)) {
    SessionMembership& member = *held;
    if (member.claim.group != event.group) continue;
    const bool now_drained =
        member.state == MembershipState::kNotified && event.formation == member.claim.joined;
    // Late: it began more, which failed, before it saw the next Joined; the coordinator cuts again.
    const bool counts_more =
        event.formation == member.drained_of && member.claim.drained.has_value() &&
        (member.state == MembershipState::kDrained || member.state == MembershipState::kJoined);
    if (!now_drained && !counts_more) continue;
    DrainRecord record = now_drained ? DrainRecord{member.claim.joined, {}} : *member.claim.drained;
    if (absl::Status few = Merge(event.counts, member.claim, record); !few.ok()) return few;
    if (now_drained) {
      Fire(member, MembershipEvent::kDrained);
      member.drained_of = event.formation;
    }
    if (member.claim.drained != record) outbox_.MarkChanged();
    member.claim.drained = std::move(record);
  }
  return absl::OkStatus();
}

void MembershipTable::TakeAnswers(const ClusterView& view) {
  for (const ClaimAnswer& answer : view.claims) {
    const auto it = members_.find({answer.session, answer.request});
    if (it == members_.end() || !it->second.held()) continue;
    SessionMembership& member = it->second;
    switch (answer.disposition) {
      case ClaimDisposition::kWaiting:
        member.waits_for = answer.status;
        LeaveOtherGroup(member, GroupId{});
        break;
      case ClaimDisposition::kGranted:
        LeaveOtherGroup(member, answer.group);
        SetGroup(member, answer.group);
        member.claim.granted_by = view.coordinator;
        member.waits_for = absl::OkStatus();
        break;
      case ClaimDisposition::kFailed:
        Fail(member, answer.status);
        break;
    }
  }
}

void MembershipTable::LeaveOtherGroup(SessionMembership& member, GroupId now) {
  Claim& claim = member.claim;
  if (member.state != MembershipState::kWaiting || !claim.group || claim.group == now) return;
  SetGroup(member, GroupId{});
  claim.granted_by = Incarnation{};
  claim.drained.reset();
  claim.bases_of = Formation{};
  claim.bases.clear();
  outbox_.MarkChanged();
}

void MembershipTable::ForgetSeen(uint64_t report_seq) {
  const size_t forgotten = std::erase_if(members_, [&](const auto& entry) {
    const uint64_t released = entry.second.released_seq;
    if (released == 0 || released > report_seq) return false;
    index_.Forget(entry.second);
    return true;
  });
  if (forgotten > 0) outbox_.MarkChanged();  // The coordinator forgets it, too.
}

void MembershipTable::Follow(const GroupView& view, Formation wanted, bool serving) {
  for (SessionMembership* member : MembersOf(view.id)) {
    Claim& claim = member->claim;
    if (view.started && claim.bases_of != view.formation) {
      claim.bases_of = view.formation;
      claim.bases.clear();
      for (const ExecutionBase& base : view.bases) {
        if (Contains(claim.ranks, base.rank)) claim.bases.push_back(base);
      }
    }
    if (!view.started || wanted > claim.joined) {
      const bool told =
          member->state == MembershipState::kNotified || member->state == MembershipState::kDrained;
      // That lost ranks have come back is said before anybody hears that the group serves: who calls after that meets it.
      if (member->state == MembershipState::kJoined ||
          (told && member->told_to_wait != view.wait)) {
        TellReform(*member, view.cause, view.wait);
      }
    }
    if (!view.started) AutoDrain(*member, view.formation);
    const bool waits =
        member->state == MembershipState::kWaiting || member->state == MembershipState::kDrained;
    if (serving && waits && claim.joined < wanted) TellJoined(*member, view);
  }
}

void MembershipTable::TellReform(GroupId group, const absl::Status& cause, bool wait) {
  for (SessionMembership* member : MembersOf(group)) {
    if (member->state == MembershipState::kJoined) TellReform(*member, cause, wait);
  }
}

void MembershipTable::TellDraining(GroupId group, const absl::Status& cause) {
  for (const SessionMembership* member : MembersOf(group)) {
    if (member->state == MembershipState::kJoined)
      outbox_.Add(NotifyDraining{member->claim.session, group, cause});
  }
}

void MembershipTable::FailWaiting(const absl::Status& status) {
  for (auto& [key, member] : members_) {
    if (member.state == MembershipState::kWaiting) Fail(member, status);
  }
}

void MembershipTable::FailAll(const absl::Status& status) {
  for (auto& [key, member] : members_) {
    if (member.held()) Fail(member, status);
  }
}

absl::Time MembershipTable::EndsAt(const SessionMembership& member) const {
  if (!member.held()) return absl::InfiniteFuture();
  return member.state == MembershipState::kWaiting ? member.deadline + grace_ : member.deadline;
}

std::vector<MembershipTable::Key> MembershipTable::Expired() const {
  std::vector<Key> out;
  for (const auto& [key, member] : members_) {
    if (EndsAt(member) <= outbox_.now()) out.push_back(key);
  }
  return out;
}

absl::Status MembershipTable::LateError(const Key& key) const {
  const SessionMembership& member = At(key);
  return absl::DeadlineExceededError(absl::StrCat(
      "group=", Title(member.claim.spec), " ",
      DescribeRanksOf(member.claim, std::string(Name(member.state))),
      ": not READY in time, and the coordinator has not said why",
      link_.connected() ? "" : absl::StrCat(": ", link_.why_not()),
      member.waits_for.ok() ? "" : absl::StrCat("; waits for: ", member.waits_for.message()),
      "; check the coordinator with epctl doctor and join again"));
}

bool MembershipTable::AnyHeld() const {
  return absl::c_any_of(members_, [](const auto& entry) { return entry.second.held(); });
}

bool MembershipTable::IsOf(const Key& key, GroupId group) const {
  const auto member = members_.find(key);
  return member != members_.end() && member->second.claim.group == group;
}

bool MembershipTable::Holds(SessionId session, GroupId group) const {
  const std::set<Key>& members = index_.OfGroup(group);
  const auto first = members.lower_bound({session, RequestId{}});
  return first != members.end() && first->first == session;
}

bool MembershipTable::HoldsStaging(SessionId session) const {
  for (auto it = members_.lower_bound({session, RequestId{}});
       it != members_.end() && it->first.first == session; ++it) {
    if (it->second.held() && it->second.state != MembershipState::kWaiting) return true;
  }
  return false;
}

std::set<GroupId> MembershipTable::JoinedGroups() const {
  std::set<GroupId> out;
  for (const auto& [key, member] : members_) {
    if (member.held() && member.state != MembershipState::kWaiting) out.insert(member.claim.group);
  }
  return out;
}

std::set<WorkerName> MembershipTable::WorkersOf(GroupId group) const {
  std::set<WorkerName> out;
  for (const Key& key : index_.OfGroup(group)) {
    const std::vector<WorkerName>& workers = At(key).claim.workers;
    out.insert(workers.begin(), workers.end());
  }
  return out;
}

absl::Time MembershipTable::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, member] : members_) next = std::min(next, EndsAt(member));
  return next;
}

std::vector<MembershipStatus> MembershipTable::Statuses() const {
  std::vector<MembershipStatus> out;
  for (const auto& [key, member] : members_) {
    if (!member.held()) continue;
    out.push_back({key.first, member.state, member.claim.spec.name, member.claim.group});
  }
  return out;
}

std::vector<std::string> MembershipTable::WaitsWithoutEnd() const {
  std::vector<std::string> out;
  for (const auto& [key, member] : members_) {
    const bool waits = member.state == MembershipState::kWaiting || member.told_to_wait;
    if (member.held() && waits && member.deadline == absl::InfiniteFuture())
      out.push_back(
          absl::StrCat("session ", key.first.value, " in group ", member.claim.spec.name));
  }
  return out;
}

void MembershipTable::PutInto(NodeReport& report) const {
  report.claims.reserve(members_.size());
  for (const auto& [key, member] : members_) {
    Claim& claim = report.claims.emplace_back(member.claim);
    if (member.state == MembershipState::kWaiting)
      claim.remaining = std::max(absl::ZeroDuration(), member.deadline - outbox_.now());
  }
}

std::vector<SessionMembership*> MembershipTable::MembersOf(GroupId group) {
  std::vector<SessionMembership*> out;
  for (const Key& key : index_.OfGroup(group)) out.push_back(&members_.at(key));
  return out;
}

std::vector<SessionMembership*> MembershipTable::HeldBy(SessionId session) {
  std::vector<SessionMembership*> out;
  for (auto it = members_.lower_bound({session, RequestId{}});
       it != members_.end() && it->first.first == session; ++it) {
    if (it->second.held()) out.push_back(&it->second);
  }
  return out;
}

void MembershipTable::SetGroup(SessionMembership& member, GroupId group) {
  index_.Move(member, group);
  member.claim.group = group;
}

void MembershipTable::Restore(Memberships members) {
  members_ = std::move(members);
  for (const auto& [key, member] : members_) index_.Add(member);
}

void MembershipTable::Fire(SessionMembership& member, MembershipEvent event) {
  const std::optional<MembershipState> next = kMembershipTransitions.Next(member.state, event);
  EPD_CHECK(next.has_value());
  member.state = *next;
}

void MembershipTable::Release(SessionMembership& member, MembershipEvent event, ClaimFate fate,
                              const absl::Status& cause) {
  index_.Release(member);
  Fire(member, event);
  member.deadline = absl::InfiniteFuture();
  member.claim.fate = fate;
  member.claim.fate_cause = cause;
  member.released_seq = link_.next_seq();
  outbox_.MarkChanged();
}

void MembershipTable::Lose(SessionMembership& member, MembershipEvent event,
                           const absl::Status& cause, std::vector<LostMember>& lost) {
  const bool joined = member.state == MembershipState::kJoined;
  const bool left = event == MembershipEvent::kLeave;
  Release(member, event, left ? ClaimFate::kLeft : ClaimFate::kGone, cause);
  if (!joined) return;
  lost.push_back({member.claim.group, member.claim.joined, left,
                  DescribeRanksOf(member.claim, left ? "left" : "gone"),
                  left ? cause : absl::OkStatus()});
}

void MembershipTable::Fail(SessionMembership& member, const absl::Status& status) {
  if (member.state == MembershipState::kWaiting) {
    outbox_.Add(ReplyFailed{member.claim.session, member.claim.request, status});
  } else {
    outbox_.Add(NotifyGroupEnded{member.claim.session, member.claim.group, status});
  }
  Release(member, MembershipEvent::kFail, ClaimFate::kGone, status);
}

void MembershipTable::TellReform(SessionMembership& member, const absl::Status& cause, bool wait) {
  const bool came_back = wait && member.state != MembershipState::kJoined;
  if (!came_back)
    Fire(member, MembershipEvent::kReform);  // Else what it has drained stays drained.
  member.told_to_wait = wait;
  member.deadline =
      wait ? outbox_.now() + member.claim.spec.deadlines.form + grace_ : absl::InfiniteFuture();
  const absl::Status why = cause.ok()
                               ? absl::AbortedError(absl::StrCat("group=", Title(member.claim.spec),
                                                                 " phase=re_forming: forms again"))
                               : cause;
  outbox_.Add(
      NotifyReform{member.claim.session, member.claim.group, member.claim.joined, why, wait});
}

void MembershipTable::TellJoined(SessionMembership& member, const GroupView& view) {
  const bool first = member.state == MembershipState::kWaiting;
  Fire(member, MembershipEvent::kServing);
  member.claim.joined = view.formation;
  member.deadline = absl::InfiniteFuture();
  member.told_to_wait = false;
  outbox_.Add(ReplyJoined{member.claim.session,
                          first ? member.claim.request : RequestId{},
                          link_.followed(),
                          view.id,
                          view.epoch,
                          view.formation,
                          view.spec,
                          view.members,
                          {member.claim.workers.begin(), member.claim.workers.end()}});
}

void MembershipTable::AutoDrain(SessionMembership& member, Formation ended) {
  const bool idle =
      member.state == MembershipState::kWaiting || member.state == MembershipState::kDrained;
  if (!idle || !ended) return;
  if (!member.claim.drained.has_value()) member.claim.drained.emplace();
  if (member.claim.drained->after >= ended) return;
  member.claim.drained->after = ended;
  outbox_.MarkChanged();
}

}  // namespace epd
