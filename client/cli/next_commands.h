// What to ask next, for somebody who called epctl without a command.
#pragma once

#include <string>

#include "client/cli/commands/command.h"

namespace epd::cli {

// Lines under the report of `status`: the commands that are useful now, the most useful first, each with what it shows.
std::string NextCommands(const Report& status);

}  // namespace epd::cli
