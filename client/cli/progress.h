// What epctl shows on a terminal while a call takes more than a second.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/commands/command.h"

namespace epd::cli {

// How many operations of a group were open, and when, since the call began.
struct OpenOperations {
  absl::Duration at;
  uint64_t count = 0;
};

// One line: what is waited for, since when, and for how long yet. With `open`, oldest first, the time that is left is
// estimated from how fast they became fewer; where they did not, or it is longer than `limit`, it is `limit` less `elapsed`
// and reads "at most".
std::string ProgressText(const std::string& command, absl::Duration elapsed, absl::Duration limit,
                         const std::vector<OpenOperations>& open);

// Runs `work` in a thread and returns what it does. From one second on, the line is written over itself to `terminal`, four
// times a second, and taken away at the end. `count_open`, which may be null, is asked as often.
Report WithProgress(const std::string& command, absl::Duration limit,
                    const std::function<Report()>& work,
                    const std::function<std::optional<uint64_t>()>& count_open,
                    std::ostream& terminal);

}  // namespace epd::cli
