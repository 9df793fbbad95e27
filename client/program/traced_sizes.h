// Whether a program was traced for the group that its alias means now.
#pragma once

#include "client/program/epd_program.h"
#include "client/program/group_config.h"

namespace epd::program {

// OK, or INVALID_ARGUMENT: places in the program's mesh are none of the group's.
Status CheckPlaces(const GroupConfig& config, const epd_program_sizes* traced);

// OK, or INVALID_ARGUMENT: the call cannot be made, as the results' buffers have other sizes or the program computes with
// another table of owners.
Status CheckSizes(const GroupConfig& config, const epd_program_sizes* traced);

}  // namespace epd::program
