#include "daemon/control/membership_state.h"

namespace epd {
namespace {

constexpr std::string_view kMembershipStates[] = {"waiting", "joined", "notified", "drained",
                                                  "released"};
constexpr std::string_view kSessionStates[] = {"attached", "ending", "gone"};
constexpr std::string_view kWorkerStates[] = {"down", "up"};

}  // namespace

std::string_view Name(MembershipState state) { return NameIn(kMembershipStates, state, "none"); }
std::string_view Name(SessionState state) { return NameIn(kSessionStates, state, "none"); }
std::string_view Name(WorkerState state) { return NameIn(kWorkerStates, state, "none"); }

}  // namespace epd
