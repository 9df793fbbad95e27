// The other side of Replacement: a program says whether it can take over from an epd that runs.
#pragma once

#include <string>
#include <vector>

#include "daemon/node/handover/handover_version.h"
#include "daemon/node/settings/settings.h"

namespace epd {

HandoverPlace PlaceOf(const Settings& settings);

// Answers the HandoverHeader on descriptor 3 with a HandoverVerdict: versions, and whether `args` are settings that
// this program takes and that leave epd where it is. Returns the process's exit status. `epd_version`: of this program.
int AnswerHandoverCheck(const std::vector<std::string>& args, const MachineFacts& facts,
                        const HandoverVersion& version, const std::string& epd_version);

}  // namespace epd
