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

// Starts `path`, as what `ps` calls `name` (empty: the path), with standard input, output and error inherited, `fd3` as descriptor 3, and no
// other descriptor; in its own process group, so that a terminal's Ctrl-C reaches only epd, which
// ends it in order.
//   NOT_FOUND           the binary is missing or not executable
//   RESOURCE_EXHAUSTED  no process, memory or descriptor to be had
//   FAILED_PRECONDITION  as CheckPidfds
absl::StatusOr<Child> Spawn(const std::string& path, const std::vector<std::string>& args, int fd3,
                            const std::string& name = "");

// Whether processes can be watched at all. Ask before the first Spawn: a sandbox that refuses it would let each child start and be
// killed again.
//   FAILED_PRECONDITION  the kernel or a sandbox has no pidfd_open
//   RESOURCE_EXHAUSTED   no descriptor to be had
absl::Status CheckPidfds();

// Takes the exit status of a child that has ended, in words: "exited with status 1", "killed by
// signal 9 (Killed)". Empty: it still runs.
std::string Reap(const Child& child);

}  // namespace epd
