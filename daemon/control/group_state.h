// The life of a group: its states, events and transitions. The coordinator is the only writer.
#pragma once

#include <string_view>

#include "daemon/control/transition_table.h"

namespace epd {

// clang-format off
//
//               kComplete                   kServing
//   FORMING --------------> BOOTSTRAPPING -----------> READY ------ kDrain -----> DRAINING
//    |   ^                     |                       ^ | |                         |
//    |   +----- kRankLost -----+                       | | |                         |
//    |                                                 | | +-- kRankLost --> DEGRADED|
//    |                                        kServing | |                     ^  |  |
//    |                                                 | | kWorkerLost         |  |  |
//    |                                                 | | kRecount  kRankLost |  |  |
//    |                                                 | v                     |  |  |
//    +------------ kRecovered --------------------> RE_FORMING ----------------+  |  |
//                                                       ^                         |  |
//                                                       +------- kComplete -------+  |
//                                                                                    v
//   kFail and kClose lead from everywhere to ------------------------------------> CLOSED
//
// kWorkerLost and kRecount begin BOOTSTRAPPING and RE_FORMING anew. kEmptied (the last lease of a group that an
// orchestrator made is gone) leads back to FORMING; other groups fail (kFail) when they are empty.
// clang-format on
enum class GroupState {
  kForming,        // Ranks are joining.
  kBootstrapping,  // All ranks are there: unique id, communicators, arenas.
  kReady,          // Operations run.
  kDegraded,       // A rank is gone; calls fail at once until it is replaced.
  kReforming,      // Sessions drain, workers are set up again; calls wait.
  kDraining,       // No new operations; open ones finish by a deadline.
  kClosed,         // The end; the name may be used for a new group.
  kCount,
};

enum class GroupEvent {
  kComplete,    // Every rank has a living holder.
  kServing,     // Every node's tenant is ready.
  kRankLost,    // A holder died or left.
  kWorkerLost,  // A worker died or was replaced: a new epoch.
  kRecount,     // A session began executions while the formation was being cut: cut again.
  kRecovered,   // A restarted coordinator hears of the group from its members.
  kDrain,       // An operator asked, or a node of the group stops in order.
  kEmptied,     // The last lease of an orchestrated group is gone.
  kFail,        // Formation error, deadline, or the last lease is gone.
  kClose,       // An operator asked, or draining has ended.
  kCount,
};

inline constexpr TransitionTable<GroupState, GroupEvent> kGroupTransitions = [] {
  using S = GroupState;
  using E = GroupEvent;
  return TransitionTable<S, E>({
      {E::kComplete, S::kBootstrapping, {S::kForming}},
      {E::kComplete, S::kReforming, {S::kDegraded}},
      {E::kServing, S::kReady, {S::kBootstrapping, S::kReforming}},
      {E::kRankLost, S::kForming, {S::kForming, S::kBootstrapping}},
      {E::kRankLost, S::kDegraded, {S::kReady, S::kDegraded, S::kReforming}},
      {E::kRankLost, S::kDraining, {S::kDraining}},
      {E::kWorkerLost, S::kBootstrapping, {S::kBootstrapping}},
      {E::kWorkerLost, S::kReforming, {S::kReady, S::kReforming}},
      {E::kRecount, S::kReforming, {S::kReady, S::kReforming}},
      {E::kRecovered, S::kReforming, {S::kForming}},
      {E::kDrain, S::kDraining, {S::kReady, S::kDraining}},
      {E::kEmptied,
       S::kForming,
       {S::kForming, S::kBootstrapping, S::kReady, S::kDegraded, S::kReforming, S::kDraining}},
      {E::kFail,
       S::kClosed,
       {S::kForming, S::kBootstrapping, S::kReady, S::kDegraded, S::kReforming, S::kDraining}},
      {E::kClose,
       S::kClosed,
       {S::kForming, S::kBootstrapping, S::kReady, S::kDegraded, S::kReforming, S::kDraining}},
  });
}();

inline std::string_view Name(GroupState state) {
  return NameIn(
      {"FORMING", "BOOTSTRAPPING", "READY", "DEGRADED", "RE_FORMING", "DRAINING", "CLOSED"}, state,
      "NONE");
}
inline std::string_view Name(GroupEvent event) {
  return NameIn({"complete", "serving", "rank_lost", "worker_lost", "recount", "recovered", "drain",
                 "emptied", "fail", "close"},
                event, "none");
}

}  // namespace epd
