// Makes a unique id in a process of its own, because each call leaves a listening socket and a thread behind for as long
// as its process lives: a worker that forms many groups would run out of descriptors. It also contains a call that hangs.
//
// The listener is where the ranks of a communicator meet, so a backend that makes communicators must keep the child until
// all of them are initialised; the CPU backend makes none, and the child ends at once.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace epd {

inline constexpr char kUniqueIdFlag[] = "--make-unique-id=";

// Runs `program --make-unique-id=NCCL_PATH` and takes the 128 bytes that it writes to its standard output. Blocks up to
// `limit`; the child is dead and reaped on return.
//   UNAVAILABLE        no NCCL there, or NCCL's own error
//   DEADLINE_EXCEEDED  no answer within `limit`
//   RESOURCE_EXHAUSTED no process or descriptor to be had
absl::StatusOr<std::string> MakeUniqueIdInChild(const std::string& program,
                                                const std::string& nccl_path, absl::Duration limit);

// What the child runs: writes the id to standard output, or the reason why not to standard error. Returns the exit status.
int UniqueIdChildMain(const std::string& nccl_path);

}  // namespace epd
