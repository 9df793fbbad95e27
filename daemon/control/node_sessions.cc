// Sessions, and the memberships that they ask for and give up.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"
#include "daemon/core/check.h"

namespace epd {

void NodeControl::Impl::On(const SessionAttached& event) {
  SessionStatus& session = sessions_[event.session];
  session.id = event.session;
  session.pid = event.pid;
  session.uid = event.uid;
  session.host = event.host;
  session.name = event.name;
  session.version = event.version;
  session.since = now_;
  if (!shutdown_deadline_.has_value()) return;
  session.state = SessionState::kEnding;
  Emit(EndSession{event.session,
                  absl::UnavailableError("epd is shutting down; retry once it is back")});
}

void NodeControl::Impl::On(const SessionGone& event) {
  const auto it = sessions_.find(event.session);
  if (it == sessions_.end()) return;
  EPD_CHECK(kSessionTransitions.Next(it->second.state, SessionEvent::kGone).has_value());
  sessions_.erase(it);
  for (auto& [key, member] : members_) {
    if (key.first == event.session && member.state != MembershipState::kReleased) {
      Release(member, MembershipEvent::kGone, event.reason);
    }
  }
}

absl::Status NodeControl::Impl::CheckJoin(const JoinRequested& event) const {
  const auto session = sessions_.find(event.session);
  if (session == sessions_.end() || session->second.state != SessionState::kAttached) {
    return absl::FailedPreconditionError("the session is ending; attach again");
  }
  if (shutdown_deadline_.has_value()) {
    return absl::UnavailableError("epd is shutting down; retry once it is back");
  }
  if (absl::Status status = Validate(event.spec); !status.ok()) return status;
  const std::string group = absl::StrCat("group=", Title(event.spec));
  if (event.ranks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, ": Join names no rank, expected at least one"));
  }
  if (event.workers.size() != 1 && event.workers.size() != event.ranks.size()) {
    return absl::InternalError(absl::StrCat(group, ": Join names ", event.ranks.size(),
                                            " ranks and ", event.workers.size(), " workers"));
  }
  for (const WorkerName& worker : event.workers) {
    if (workers_.count(worker) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(group, ": this node has no worker ", ToString(worker), "; see epctl status"));
  }
  std::set<Rank> seen;
  for (const Rank rank : event.ranks) {
    if (rank.value >= event.spec.num_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          group, " rank=", rank.value, ": expected a rank below num_ranks=", event.spec.num_ranks));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(group, " rank=", rank.value, ": named twice in one Join"));
    }
  }
  if (event.deadline == absl::InfiniteFuture()) {
    return absl::InvalidArgumentError(absl::StrCat(group, ": Join has no deadline"));
  }
  for (const auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased || key.first != event.session) continue;
    if (key.second == event.request)
      return absl::InvalidArgumentError("a request id was used twice");
    if (member.claim.spec.name == event.spec.name) {
      return absl::AlreadyExistsError(absl::StrCat(group, ": this session has joined it as ranks ",
                                                   DescribeRanks(member.claim.ranks),
                                                   "; name all ranks in one Join, or leave first"));
    }
  }
  return absl::OkStatus();
}

void NodeControl::Impl::On(const JoinRequested& event) {
  if (const absl::Status status = CheckJoin(event); !status.ok()) {
    if (sessions_.count(event.session) > 0) Emit(ReplyFailed{event.session, event.request, status});
    return;
  }
  const SessionStatus& session = sessions_.at(event.session);
  Membership& member = members_[{event.session, event.request}];
  member = Membership{};
  member.since = now_;
  member.deadline = event.deadline;
  member.waits_for = absl::UnavailableError("the coordinator");
  Claim& claim = member.claim;
  claim.session = event.session;
  claim.request = event.request;
  claim.host = session.host;
  claim.pid = session.pid;
  claim.client_name = session.name;
  claim.client_version = session.version;
  claim.spec = event.spec;
  claim.ranks = event.ranks;
  claim.workers = event.workers;
  claim.min_epoch = event.min_epoch;
  claim.proposed = event.proposed;
  dirty_ = true;
}

void NodeControl::Impl::On(const LeaveRequested& event) {
  if (sessions_.count(event.session) == 0) return;
  bool found = false;
  for (auto& [key, member] : members_) {
    if (key.first != event.session || member.claim.group != event.group) continue;
    if (member.state == MembershipState::kReleased) continue;
    found = true;
    if (member.state == MembershipState::kWaiting) {
      Emit(ReplyFailed{key.first, key.second,
                       absl::AbortedError(absl::StrCat("group=", Title(member.claim.spec),
                                                       ": the session left while joining"))});
    }
    Release(member, MembershipEvent::kLeave, absl::OkStatus());
  }
  const absl::Status status =
      found ? absl::OkStatus()
            : absl::NotFoundError(
                  absl::StrCat("this session is no member of group id ", event.group.value));
  Emit(ReplyLeft{event.session, event.request, status});
}

void NodeControl::Impl::On(const SessionDrained& event) {
  for (auto& [key, member] : members_) {
    if (key.first != event.session || member.claim.group != event.group) continue;
    const bool now_drained =
        member.state == MembershipState::kNotified && event.formation == member.claim.joined;
    // Late: it began more, which failed, before it saw the next Joined; the coordinator cuts again.
    const bool counts_more =
        event.formation == member.drained_of && member.claim.drained.has_value() &&
        (member.state == MembershipState::kDrained || member.state == MembershipState::kJoined);
    if (!now_drained && !counts_more) continue;
    DrainRecord record = now_drained ? DrainRecord{member.claim.joined, {}} : *member.claim.drained;
    for (const ExecutionCount& count : event.counts) {
      const auto& ranks = member.claim.ranks;
      if (std::find(ranks.begin(), ranks.end(), count.rank) == ranks.end()) continue;
      const auto same =
          std::find_if(record.counts.begin(), record.counts.end(), [&](const ExecutionCount& c) {
            return c.rank == count.rank && c.program == count.program;
          });
      if (same == record.counts.end()) {
        record.counts.push_back(count);
      } else {
        same->begun = std::max(same->begun, count.begun);
      }
    }
    std::sort(record.counts.begin(), record.counts.end());
    if (now_drained) {
      Fire(member, MembershipEvent::kDrained);
      member.drained_of = event.formation;
    }
    dirty_ = dirty_ || member.claim.drained != record;
    member.claim.drained = std::move(record);
  }
}

void NodeControl::Impl::Fire(Membership& member, MembershipEvent event) {
  const auto next = kMembershipTransitions.Next(member.state, event);
  EPD_CHECK(next.has_value());
  if (member.state != *next) member.since = now_;
  member.state = *next;
}

void NodeControl::Impl::Release(Membership& member, MembershipEvent event,
                                const absl::Status& cause) {
  const bool left = event == MembershipEvent::kLeave;
  const bool joined = member.state == MembershipState::kJoined;
  Fire(member, event);
  member.deadline = absl::InfiniteFuture();
  member.claim.fate = left ? ClaimFate::kLeft : ClaimFate::kGone;
  member.claim.fate_cause = cause;
  member.released_seq = report_seq_ + 1;
  dirty_ = true;
  const auto group = groups_.find(member.claim.group);
  if (group == groups_.end() || !joined) return;
  // Its peers on this node need not wait for the coordinator to hear of it.
  if (group->second.view.state == GroupState::kDraining) return;
  group->second.ended = std::max(group->second.ended, member.claim.joined);
  const absl::Status why = absl::UnavailableError(absl::StrCat(
      "group=", Title(member.claim.spec), " epoch=", group->second.view.epoch.value, ": ",
      Describe(member, left ? "left" : "gone"),
      left ? " has left; finalise and join again" : " is gone; replace it or join again"));
  EndLocalTenants(group->second, why);
  for (Membership* peer : MembersOf(member.claim.group)) {
    if (peer->state == MembershipState::kJoined) TellReform(*peer, why, /*wait=*/false);
  }
}

void NodeControl::Impl::FailMember(Membership& member, const absl::Status& status) {
  if (member.state == MembershipState::kWaiting) {
    Emit(ReplyFailed{member.claim.session, member.claim.request, status});
  } else {
    Emit(NotifyGroupEnded{member.claim.session, member.claim.group, status});
  }
  Fire(member, MembershipEvent::kFail);
  member.deadline = absl::InfiniteFuture();
  member.claim.fate = ClaimFate::kGone;
  member.claim.fate_cause = status;
  member.released_seq = report_seq_ + 1;
  dirty_ = true;
}

std::string NodeControl::Impl::Describe(const Membership& member, const std::string& phase) const {
  std::string out;
  for (const Rank rank : member.claim.ranks) {
    RankHolder holder;
    holder.rank = rank;
    holder.host = member.claim.host;
    holder.pid = member.claim.pid;
    absl::StrAppend(&out, out.empty() ? "" : "; ", epd::Describe(holder, phase));
  }
  return out;
}

}  // namespace epd
