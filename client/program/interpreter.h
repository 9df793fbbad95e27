// What CPython says about Ctrl-C to threads that wait.
#pragma once

#include "client/program/epd_program.h"

namespace epd::program {

// As epd_program_set_interpreter.
void SetInterpreter(const epd_program_interpreter* interpreter);

}  // namespace epd::program
