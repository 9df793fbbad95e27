// epctl as a function: what main() calls and tests call.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/exit_code.h"
#include "client/cli/socket_search.h"

namespace epd::cli {

// Where epctl runs.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool is_tty = false;                        // Of `out`: --watch redraws instead of adding blocks.
  std::function<void(absl::Duration)> sleep;  // Between two rounds of --watch.
  // The same for `top`, until a key is pressed: that, or 0. Unset: as sleep.
  std::function<char(absl::Duration)> wait_for_key = nullptr;
  bool colours = false;  // `out` takes them.
  std::ostream* progress =
      nullptr;  // A terminal for a line that tells how far a call is; null: none.
};

// Runs one command line (`args` without the program's name) and returns the exit code. Prints the
// report to `out` and what went wrong to `err`; with -o json a failed command prints an ErrorReport
// to `out` as well. Blocks for at most
// --timeout a call (drain: its deadline more), and with --watch until --count rounds are done.
ExitCode RunEpctl(const std::vector<std::string>& args, const SearchContext& search,
                  const Terminal& terminal);

}  // namespace epd::cli
