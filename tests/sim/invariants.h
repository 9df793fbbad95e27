// What must hold in every run, whatever is lost, late, repeated or dead. Checked after every step;
// what is marked "settled" after faults have stopped and every deadline has passed.
//
// clang-format off
//   one_epoch      Of one coordinator, a (group, formation) has one placement and one epoch, whoever
//                  says so; a (group, epoch) has one map from ranks to workers. On a node, the epochs
//                  of a name only grow, from one incarnation of the coordinator to the next, too.
//   one_communicator  All tenants of a group are in one epoch at a time, of one communicator, which no
//                  other group has.
//   own_tenant     A session is told Joined only for the tenant that it asked for, and shares a
//                  formation, and with it arenas, only with sessions that asked for it too.
//   unharmed       A READY tenant loses a rank, or fails, only when one of its own sessions has died,
//                  has left, or is on a node that was lost: never for the sake of another tenant. It
//                  loses a worker only when one that serves it has died.
//   own_worker     A worker is told of formations in which it serves a rank, and each rank is served by
//                  the worker that it asked for.
//   all_ready      A formation is READY only when each of its workers has said that it serves it.
//   dead_hold      No region of a staging pool overlaps or is miscounted. Settled: no lease belongs
//                  to a dead session, no region to a tenant that does not run.
//   no_endless     Nobody waits without a deadline, and no deadline is left to pass by more than the
//                  slack.
//   granted_once   A (group, formation, rank) is held by one session.
//   unique_id      A unique id serves one epoch of one group; all nodes of an epoch got the same one.
//   stale          A view, report or answer of an older seq, incarnation or epoch has no effect; the
//                  formations and epochs that a worker is told only grow.
//   answered_once  A Join, and an operator's request, is answered exactly once. Settled: none is
//                  unanswered.
//   cut_off        No rank is more than one failed call away from its peers when a formation begins: its base
//                  of a program is what it has begun, or one more. Settled: nor is any rank above its base
//                  when it is told Joined.
//   first_cause    Why a group that was READY is over does not change until it is READY again or closed, in what the
//                  coordinator tells nodes and in what each node tells its clients.
//   hears_first    A coordinator that goes on after it was stopped loses no node before it has heard what was
//                  said meanwhile.
//   left_nothing   Staging is quarantined for nobody who has left its groups and then ended its session, however long
//                  its process lives on. With a data plane.
//   settled        Settled: every group rests (READY, DEGRADED, or FORMING when made by an operator),
//                  and every node sees what the coordinator sees. What is READY is served by every
//                  worker of its ranks.
// clang-format on
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/control/node_effects.h"
#include "daemon/control/rendezvous.h"
#include "daemon/core/execution.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"

namespace epd::sim {

// A session in the whole cluster and over restarts.
struct Who {
  std::string node;
  uint64_t incarnation = 0;
  uint64_t session = 0;

  friend auto operator<=>(const Who&, const Who&) = default;
};

class Invariants {
 public:
  // The first violation; empty so far.
  const std::string& violation() const { return violation_; }
  void Fail(const std::string& invariant, const std::string& what);

  // ---- what the world sees ----
  void SawStartTenant(const std::string& node, uint64_t node_incarnation, uint64_t worker,
                      const StartTenant& start);
  void SawUniqueIdMade(GroupId group, Epoch epoch, const UniqueId& id);
  void SawInit(const InitCommunicator& init);
  void SawJoined(const Who& who, const ReplyJoined& joined);
  void SawJoinAsked(const Who& who, RequestId request);
  // The client itself has asked for it, whatever reaches its node.
  void SawWish(SessionId session, const GroupSpec& spec);
  void SawView(const ClusterView& view);
  // `served`: the group's last formation that was READY, as the node has heard.
  void SawReform(const std::string& node, uint64_t node_incarnation, const NotifyReform& reform,
                 Formation served);
  // The worker that a rank of the group asks for, on whichever node it is.
  void SawWorkerOf(const std::string& name, Rank rank, const WorkerName& worker);
  // A worker serves the tenant, and its node has heard so.
  void SawReady(const WorkerId& worker, GroupId group, Formation formation);
  void SawGroupReady(Incarnation coordinator, GroupId group, Formation formation);
  // Whoever says that it has been a member makes it once more, under its id.
  void SawGroupClosed(Incarnation coordinator, GroupId group) {
    first_cause_.erase({coordinator, group});
  }
  void SawJoinAnswered(const Who& who, RequestId request);
  void SawSessionEnd(const Who& who);  // Its open Joins need no answer any more.
  void SawOrderAsked(const std::string& node, uint64_t incarnation, RequestId request);
  void SawOrderAnswered(const std::string& node, uint64_t incarnation, RequestId request);
  void SawNodeEnd(const std::string& node, uint64_t incarnation);
  // A session takes a rank up (its client has read Joined).
  void SawHeld(Incarnation coordinator, GroupId group, Formation formation, Rank rank,
               const Who& who);
  // What a client tells its node that it has begun.
  void SawDrained(SessionId session, GroupId group, const std::vector<ExecutionCount>& counts);
  void SawStaleDelivery(const std::string& what, size_t num_effects);

  // The base of (rank, program) in a formation that some node has started.
  // Of a formation that some node has started; else empty.
  std::vector<RankHolder> MembersOf(Incarnation coordinator, GroupId group,
                                    Formation formation) const;
  uint64_t BaseOf(Incarnation coordinator, GroupId group, Formation formation, Rank rank,
                  const ProgramId& program) const;

  void CheckAllAnswered();

 private:
  struct Started {
    Epoch epoch;
    std::vector<RankHolder> members;
    bool has_bases = false;
    std::map<std::pair<Rank, ProgramId>, uint64_t> bases;
  };

  void CheckPlacement(Incarnation coordinator, GroupId group, Epoch epoch, Formation formation,
                      const GroupSpec& spec, const std::vector<RankHolder>& members);
  void CheckWorkers(const std::string& node, const StartTenant& start);
  void CheckFirst(const std::string& who, const std::string& first, const absl::Status& now);
  void CheckCut(Incarnation coordinator, GroupId group, Formation formation);

  std::string violation_;
  std::map<std::tuple<Incarnation, GroupId, Formation>, Started> started_;
  std::map<std::tuple<Incarnation, std::string, Epoch>, std::map<Rank, WorkerId>>
      places_of_epoch_;  // By the group's name, whatever the tenant.
  std::map<std::tuple<Incarnation, std::string, Epoch>, GroupId> communicator_of_;
  std::map<std::pair<Incarnation, GroupId>, std::string> name_of_communicator_;
  std::set<std::tuple<SessionId, std::string, std::string>> wishes_;  // Group name, tenant.
  std::map<std::pair<std::string, Rank>, WorkerName> worker_asked_;
  std::set<std::tuple<WorkerId, GroupId, Formation>> ready_;
  std::map<std::tuple<Incarnation, GroupId, Epoch>, std::string> id_of_epoch_;
  std::map<std::string, std::pair<GroupId, Epoch>> epoch_of_id_;
  std::map<std::pair<std::string, std::string>, Epoch>
      joined_epoch_;  // (node and incarnation, group name).
  std::map<std::tuple<std::string, uint64_t, uint64_t, GroupId>, std::pair<Formation, Epoch>>
      told_worker_;
  std::map<std::tuple<Incarnation, GroupId, Formation, Rank>, Who> holder_;
  std::map<std::tuple<SessionId, GroupId, Rank, ProgramId>, uint64_t> begun_;  // The highest told.
  std::map<std::pair<Incarnation, GroupId>, std::string> first_cause_;  // Since it was READY.
  std::map<std::tuple<std::string, uint64_t, GroupId, Formation>, std::string> told_cause_;
  std::map<std::pair<Who, RequestId>, int> joins_;
  std::map<std::tuple<std::string, uint64_t, RequestId>, int> orders_;
};

}  // namespace epd::sim
