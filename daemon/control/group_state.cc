#include "daemon/control/group_state.h"

namespace epd {
namespace {

constexpr std::string_view kStates[] = {"FORMING",    "BOOTSTRAPPING", "READY", "DEGRADED",
                                        "RE_FORMING", "DRAINING",      "CLOSED"};
constexpr std::string_view kEvents[] = {"complete", "serving",   "rank_lost", "worker_lost",
                                        "recount",  "recovered", "drain",     "emptied",
                                        "fail",     "close"};

}  // namespace

std::string_view Name(GroupState state) { return NameIn(kStates, state, "NONE"); }
std::string_view Name(GroupEvent event) { return NameIn(kEvents, event, "none"); }

}  // namespace epd
