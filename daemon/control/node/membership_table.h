// The Joins of a node's sessions: what each session asks for, holds, and has been told.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/control/node/coordinator_link.h"
#include "daemon/control/node/local_workers.h"
#include "daemon/control/node/membership_index.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node/session_membership.h"

namespace epd {

// A session that took part in a group's formation does so no more.
struct LostMember {
  GroupId group;
  Formation formation;
  bool left = false;      // By itself.
  std::string who;        // Its ranks, for messages.
  absl::Status why = {};  // Of one that left since it cannot take part.
};

class MembershipTable {
 public:
  using Key = Memberships::key_type;

  MembershipTable(absl::Duration coordinator_grace, const LocalWorkers& workers,
                  const CoordinatorLink& link, Outbox& outbox)
      : grace_(coordinator_grace), workers_(workers), link_(link), outbox_(outbox) {}

  // ---- what sessions want; nothing is answered here but what takes time ----
  // Errors as CheckJoin, CheckSession and CheckUid.
  absl::Status Join(const JoinRequested& event, const SessionAttached& client);
  // Returns those that peers on this node have lost.
  //   NOT_FOUND  the session is no member of the group
  absl::StatusOr<std::vector<LostMember>> Leave(const LeaveRequested& event);
  std::vector<LostMember> Drop(SessionId session, const absl::Status& reason);
  // Changes nothing where it fails.
  //   RESOURCE_EXHAUSTED  as Merge; end the session
  absl::Status TakeDrained(const SessionDrained& event);

  // ---- what the coordinator says ----
  void TakeAnswers(const ClusterView& view);
  // Forgets the released ones that the coordinator has seen.
  void ForgetSeen(uint64_t report_seq);

  // ---- what happens to a group ----
  // Brings the group's members to what its view says. `wanted`: the formation that sessions should
  // be in, or none; `serving`: it is READY here.
  void Follow(const GroupView& view, Formation wanted, bool serving);
  // Tells the group's joined members that its formation has ended.
  void TellReform(GroupId group, const absl::Status& cause, bool wait);
  // Tells them that it takes no new operations, and ends soon, with `cause`.
  void TellDraining(GroupId group, const absl::Status& cause);

  // ---- ends with an error: answers a Join, or tells that the group has ended ----
  void Fail(const Key& key, const absl::Status& status) { Fail(members_.at(key), status); }
  void FailWaiting(const absl::Status& status);
  void FailAll(const absl::Status& status);
  std::vector<Key> Expired() const;  // At the call's time.
  absl::Status LateError(const Key& key) const;

  const Memberships& all() const { return members_; }
  const MembershipIndex& index() const { return index_; }
  const SessionMembership& At(const Key& key) const { return members_.at(key); }
  bool AnyHeld() const;
  bool Holds(SessionId session, GroupId group) const;
  // Whether the session was given staging of some group, which it has not left.
  bool HoldsStaging(SessionId session) const;
  // Whether there is such a membership, and of that group.
  bool IsOf(const Key& key, GroupId group) const;
  std::set<GroupId> JoinedGroups() const;  // Of held ones that do not wait for their first answer.
  std::set<WorkerName> WorkersOf(GroupId group) const;  // That serve its members.
  absl::Time NextDeadline() const;
  std::vector<MembershipStatus> Statuses() const;
  // As Rendezvous::WaitsWithoutEnd.
  std::vector<std::string> WaitsWithoutEnd() const;
  void PutInto(NodeReport& report) const;
  void Restore(Memberships members);

 private:
  std::vector<SessionMembership*> MembersOf(GroupId group);
  std::vector<SessionMembership*> HeldBy(SessionId session);
  // The only writer of its group.
  void SetGroup(SessionMembership& member, GroupId group);
  // The only writer of a membership's state.
  void Fire(SessionMembership& member, MembershipEvent event);
  void Release(SessionMembership& member, MembershipEvent event, ClaimFate fate,
               const absl::Status& cause);
  void Lose(SessionMembership& member, MembershipEvent event, const absl::Status& cause,
            std::vector<LostMember>& lost);
  void Fail(SessionMembership& member, const absl::Status& status);
  // The group that it was granted before has ended without an answer to its Join: what was said of that one is over.
  void LeaveOtherGroup(SessionMembership& member, GroupId now);
  void TellReform(SessionMembership& member, const absl::Status& cause, bool wait);
  void TellJoined(SessionMembership& member, const GroupView& view);
  // A session that has not been told Joined for a formation has nothing in flight in it.
  void AutoDrain(SessionMembership& member, Formation ended);
  // When it ends by itself; a Join is left to the coordinator for the grace.
  absl::Time EndsAt(const SessionMembership& member) const;

  absl::Duration grace_;
  const LocalWorkers& workers_;
  const CoordinatorLink& link_;
  Outbox& outbox_;
  Memberships members_;
  MembershipIndex index_;
};

}  // namespace epd
