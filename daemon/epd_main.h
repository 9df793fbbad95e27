// epd: reads the configuration, starts everything in order, runs the control thread, stops in the
// reverse order, or leaves its process to another program.
#pragma once

#include <string>
#include <vector>

#include "daemon/node/handover/handover_version.h"

namespace epd {

// `args` without the program's name; `version`: of the state that this build hands over and takes. Returns the exit
// status. On the main thread.
int RunEpd(const std::vector<std::string>& args, const HandoverVersion& version);

}  // namespace epd
