// The life of a membership (one Join of one session), of a session, and of a node's worker.
#pragma once

#include <string_view>

#include "daemon/control/transition_table.h"

namespace epd {

//   WAITING --kServing--> JOINED --kReform--> NOTIFIED --kDrained--> DRAINED --kServing--> JOINED
//      |                    |                   |                      |
//      +--------------------+-------------------+----------------------+--> RELEASED
//                             kLeave, kGone, kFail
enum class MembershipState {
  kWaiting,   // Its Join is unanswered.
  kJoined,    // Told Joined; operations run.
  kNotified,  // Told Reform; operations of the old formation are ending.
  kDrained,   // Has said Drained; waits for the next Joined.
  kReleased,  // Left, dead or failed; kept only until the coordinator has seen it.
  kCount,
};

enum class MembershipEvent {
  kServing,  // The group is READY in a formation that this session has not been told.
  kReform,   // Its formation has ended.
  kDrained,  // The session said so.
  kLeave,
  kGone,  // The session is dead.
  kFail,  // The group has ended, or the Join failed.
  kCount,
};

inline constexpr TransitionTable<MembershipState, MembershipEvent> kMembershipTransitions{
    (const TransitionRow<MembershipState, MembershipEvent>[]){
        {MembershipState::kWaiting, MembershipEvent::kServing, MembershipState::kJoined},
        {MembershipState::kWaiting, MembershipEvent::kLeave, MembershipState::kReleased},
        {MembershipState::kWaiting, MembershipEvent::kGone, MembershipState::kReleased},
        {MembershipState::kWaiting, MembershipEvent::kFail, MembershipState::kReleased},

        {MembershipState::kJoined, MembershipEvent::kReform, MembershipState::kNotified},
        {MembershipState::kJoined, MembershipEvent::kLeave, MembershipState::kReleased},
        {MembershipState::kJoined, MembershipEvent::kGone, MembershipState::kReleased},
        {MembershipState::kJoined, MembershipEvent::kFail, MembershipState::kReleased},

        {MembershipState::kNotified, MembershipEvent::kReform, MembershipState::kNotified},
        {MembershipState::kNotified, MembershipEvent::kDrained, MembershipState::kDrained},
        {MembershipState::kNotified, MembershipEvent::kLeave, MembershipState::kReleased},
        {MembershipState::kNotified, MembershipEvent::kGone, MembershipState::kReleased},
        {MembershipState::kNotified, MembershipEvent::kFail, MembershipState::kReleased},

        {MembershipState::kDrained, MembershipEvent::kServing, MembershipState::kJoined},
        {MembershipState::kDrained, MembershipEvent::kReform, MembershipState::kDrained},
        {MembershipState::kDrained, MembershipEvent::kDrained, MembershipState::kDrained},
        {MembershipState::kDrained, MembershipEvent::kLeave, MembershipState::kReleased},
        {MembershipState::kDrained, MembershipEvent::kGone, MembershipState::kReleased},
        {MembershipState::kDrained, MembershipEvent::kFail, MembershipState::kReleased},
    }};

// ATTACHED --kEnd--> ENDING --kGone--> GONE;  ATTACHED --kGone--> GONE
enum class SessionState { kAttached, kEnding, kGone, kCount };
enum class SessionEvent { kEnd, kGone, kCount };

inline constexpr TransitionTable<SessionState, SessionEvent> kSessionTransitions{
    (const TransitionRow<SessionState, SessionEvent>[]){
        {SessionState::kAttached, SessionEvent::kEnd, SessionState::kEnding},
        {SessionState::kAttached, SessionEvent::kGone, SessionState::kGone},
        {SessionState::kEnding, SessionEvent::kGone, SessionState::kGone},
    }};

// DOWN --kStarted--> UP --kDied--> DOWN;  a start that fails: DOWN --kDied--> DOWN
enum class WorkerState { kDown, kUp, kCount };
enum class WorkerEvent { kStarted, kDied, kCount };

inline constexpr TransitionTable<WorkerState, WorkerEvent> kWorkerTransitions{
    (const TransitionRow<WorkerState, WorkerEvent>[]){
        {WorkerState::kDown, WorkerEvent::kStarted, WorkerState::kUp},
        {WorkerState::kDown, WorkerEvent::kDied, WorkerState::kDown},
        {WorkerState::kUp, WorkerEvent::kDied, WorkerState::kDown},
    }};

// Lower-case words for people: "waiting", "joined", "notified", ...; "attached", ...; "down", "up".
std::string_view Name(MembershipState state);
std::string_view Name(SessionState state);
std::string_view Name(WorkerState state);

}  // namespace epd
