#include "daemon/control/membership_state.h"

namespace epd {

std::string_view Name(MembershipState state) {
  switch (state) {
    case MembershipState::kWaiting:
      return "waiting";
    case MembershipState::kJoined:
      return "joined";
    case MembershipState::kNotified:
      return "notified";
    case MembershipState::kDrained:
      return "drained";
    case MembershipState::kReleased:
      return "released";
    case MembershipState::kCount:
      break;
  }
  return "none";
}

std::string_view Name(SessionState state) {
  switch (state) {
    case SessionState::kAttached:
      return "attached";
    case SessionState::kEnding:
      return "ending";
    case SessionState::kGone:
      return "gone";
    case SessionState::kCount:
      break;
  }
  return "none";
}

std::string_view Name(WorkerState state) {
  switch (state) {
    case WorkerState::kDown:
      return "down";
    case WorkerState::kUp:
      return "up";
    case WorkerState::kCount:
      break;
  }
  return "none";
}

}  // namespace epd
