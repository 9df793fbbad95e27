#include "daemon/control/group_state.h"

namespace epd {

std::string_view Name(GroupState state) {
  switch (state) {
    case GroupState::kForming:
      return "FORMING";
    case GroupState::kBootstrapping:
      return "BOOTSTRAPPING";
    case GroupState::kReady:
      return "READY";
    case GroupState::kDegraded:
      return "DEGRADED";
    case GroupState::kReforming:
      return "RE_FORMING";
    case GroupState::kDraining:
      return "DRAINING";
    case GroupState::kClosed:
      return "CLOSED";
    case GroupState::kCount:
      break;
  }
  return "NONE";
}

std::string_view Name(GroupEvent event) {
  switch (event) {
    case GroupEvent::kComplete:
      return "complete";
    case GroupEvent::kServing:
      return "serving";
    case GroupEvent::kRankLost:
      return "rank_lost";
    case GroupEvent::kWorkerLost:
      return "worker_lost";
    case GroupEvent::kRecount:
      return "recount";
    case GroupEvent::kRecovered:
      return "recovered";
    case GroupEvent::kDrain:
      return "drain";
    case GroupEvent::kEmptied:
      return "emptied";
    case GroupEvent::kFail:
      return "fail";
    case GroupEvent::kClose:
      return "close";
    case GroupEvent::kCount:
      break;
  }
  return "none";
}

}  // namespace epd
