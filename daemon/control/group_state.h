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
  kDrain,       // An operator asked.
  kEmptied,     // The last lease of an orchestrated group is gone.
  kFail,        // Formation error, deadline, or the last lease is gone.
  kClose,       // An operator asked, or draining has ended.
  kCount,
};

inline constexpr TransitionTable<GroupState, GroupEvent> kGroupTransitions{
    (const TransitionRow<GroupState, GroupEvent>[]){
        {GroupState::kForming, GroupEvent::kComplete, GroupState::kBootstrapping},
        {GroupState::kForming, GroupEvent::kRankLost, GroupState::kForming},
        {GroupState::kForming, GroupEvent::kRecovered, GroupState::kReforming},
        {GroupState::kForming, GroupEvent::kEmptied, GroupState::kForming},
        {GroupState::kForming, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kForming, GroupEvent::kClose, GroupState::kClosed},

        {GroupState::kBootstrapping, GroupEvent::kServing, GroupState::kReady},
        {GroupState::kBootstrapping, GroupEvent::kRankLost, GroupState::kForming},
        {GroupState::kBootstrapping, GroupEvent::kWorkerLost, GroupState::kBootstrapping},
        {GroupState::kBootstrapping, GroupEvent::kEmptied, GroupState::kForming},
        {GroupState::kBootstrapping, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kBootstrapping, GroupEvent::kClose, GroupState::kClosed},

        {GroupState::kReady, GroupEvent::kRankLost, GroupState::kDegraded},
        {GroupState::kReady, GroupEvent::kWorkerLost, GroupState::kReforming},
        {GroupState::kReady, GroupEvent::kRecount, GroupState::kReforming},
        {GroupState::kReady, GroupEvent::kDrain, GroupState::kDraining},
        {GroupState::kReady, GroupEvent::kEmptied, GroupState::kForming},
        {GroupState::kReady, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kReady, GroupEvent::kClose, GroupState::kClosed},

        {GroupState::kDegraded, GroupEvent::kComplete, GroupState::kReforming},
        {GroupState::kDegraded, GroupEvent::kRankLost, GroupState::kDegraded},
        {GroupState::kDegraded, GroupEvent::kEmptied, GroupState::kForming},
        {GroupState::kDegraded, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kDegraded, GroupEvent::kClose, GroupState::kClosed},

        {GroupState::kReforming, GroupEvent::kServing, GroupState::kReady},
        {GroupState::kReforming, GroupEvent::kRankLost, GroupState::kDegraded},
        {GroupState::kReforming, GroupEvent::kWorkerLost, GroupState::kReforming},
        {GroupState::kReforming, GroupEvent::kRecount, GroupState::kReforming},
        {GroupState::kReforming, GroupEvent::kEmptied, GroupState::kForming},
        {GroupState::kReforming, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kReforming, GroupEvent::kClose, GroupState::kClosed},

        {GroupState::kDraining, GroupEvent::kRankLost, GroupState::kDraining},
        {GroupState::kDraining, GroupEvent::kDrain, GroupState::kDraining},
        {GroupState::kDraining, GroupEvent::kFail, GroupState::kClosed},
        {GroupState::kDraining, GroupEvent::kClose, GroupState::kClosed},
    }};

// "FORMING", "BOOTSTRAPPING", "READY", "DEGRADED", "RE_FORMING", "DRAINING", "CLOSED".
std::string_view Name(GroupState state);
// "complete", "serving", "rank_lost", ...
std::string_view Name(GroupEvent event);

}  // namespace epd
