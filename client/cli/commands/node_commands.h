// The commands that are one call of the Node service and its answer as a table.
#pragma once

#include <vector>

#include "client/cli/commands/command.h"

namespace epd::cli {

std::vector<Command> NodeCommands();

}  // namespace epd::cli
