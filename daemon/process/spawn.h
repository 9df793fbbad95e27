// Starting and reaping one child process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"

namespace epd {

struct Child {
  int pid = 0;
  UniqueFd pidfd;  // Readable once the child has ended.
};

// Starts `path` with standard input, output and error inherited, `fd3` as descriptor 3, and no
// other descriptor; in its own process group, so that a terminal's Ctrl-C reaches only epd, which
// ends it in order.
//   NOT_FOUND           the binary is missing or not executable
//   RESOURCE_EXHAUSTED  no process, memory or descriptor to be had
absl::StatusOr<Child> Spawn(const std::string& path, const std::vector<std::string>& args, int fd3);

// Takes the exit status of a child that has ended, in words: "exited with status 1", "killed by
// signal 9 (Killed)". Empty: it still runs.
std::string Reap(const Child& child);

}  // namespace epd
