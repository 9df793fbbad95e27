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

inline constexpr TransitionTable<MembershipState, MembershipEvent> kMembershipTransitions = [] {
  using S = MembershipState;
  using E = MembershipEvent;
  return TransitionTable<S, E>({
      {E::kServing, S::kJoined, {S::kWaiting, S::kDrained}},
      {E::kReform, S::kNotified, {S::kJoined, S::kNotified}},
      {E::kReform, S::kDrained, {S::kDrained}},
      {E::kDrained, S::kDrained, {S::kNotified, S::kDrained}},
      {E::kLeave, S::kReleased, {S::kWaiting, S::kJoined, S::kNotified, S::kDrained}},
      {E::kGone, S::kReleased, {S::kWaiting, S::kJoined, S::kNotified, S::kDrained}},
      {E::kFail, S::kReleased, {S::kWaiting, S::kJoined, S::kNotified, S::kDrained}},
  });
}();

// ATTACHED --kEnd--> ENDING --kGone--> GONE;  ATTACHED --kGone--> GONE
enum class SessionState { kAttached, kEnding, kGone, kCount };
enum class SessionEvent { kEnd, kGone, kCount };

inline constexpr TransitionTable<SessionState, SessionEvent> kSessionTransitions = [] {
  using S = SessionState;
  using E = SessionEvent;
  return TransitionTable<S, E>({
      {E::kEnd, S::kEnding, {S::kAttached}},
      {E::kGone, S::kGone, {S::kAttached, S::kEnding}},
  });
}();

// DOWN --kStarted--> UP --kDied--> DOWN;  a start that fails: DOWN --kDied--> DOWN
enum class WorkerState { kDown, kUp, kCount };
enum class WorkerEvent { kStarted, kDied, kCount };

inline constexpr TransitionTable<WorkerState, WorkerEvent> kWorkerTransitions = [] {
  using S = WorkerState;
  using E = WorkerEvent;
  return TransitionTable<S, E>({
      {E::kStarted, S::kUp, {S::kDown}},
      {E::kDied, S::kDown, {S::kDown, S::kUp}},
  });
}();

// For people.
inline std::string_view Name(MembershipState state) {
  return NameIn({"waiting", "joined", "notified", "drained", "released"}, state, "none");
}
inline std::string_view Name(SessionState state) {
  return NameIn({"attached", "ending", "gone"}, state, "none");
}
inline std::string_view Name(WorkerState state) { return NameIn({"down", "up"}, state, "none"); }

}  // namespace epd
