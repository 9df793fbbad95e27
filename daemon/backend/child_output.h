// Runs a program for what it prints, with a deadline: for libraries that may hang or end their process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace epd {

struct ChildOutput {
  std::string output;      // Its standard output, at most 1 MiB.
  std::string complaints;  // Its standard error, at most 1 MiB.
  bool late = false;       // It was killed at the limit.
  std::string end;         // "": it exited with 0; else how it ended.
};

// Starts `program`, reads until it closes both outputs, and reaps it; it gets no descriptor of ours.
// Blocks up to `limit`.
//   RESOURCE_EXHAUSTED  no process or descriptor to be had
//   NOT_FOUND           there is no such program
absl::StatusOr<ChildOutput> RunChild(const std::string& program,
                                     const std::vector<std::string>& arguments,
                                     absl::Duration limit);

}  // namespace epd
