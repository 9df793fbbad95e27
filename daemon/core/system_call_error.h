// The error of a system call without which epd cannot work.
#pragma once

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace epd {

// Says which of two things is wrong, since they are mended by different people:
//   RESOURCE_EXHAUSTED   a limit is reached: `at_limit` says what to raise or to end
//   FAILED_PRECONDITION  the kernel has no such call, or a sandbox refuses it, as the seccomp profile of a container does
// `what` names the call and what it was for; `error` is its errno.
inline absl::Status SystemCallError(absl::string_view what, int error, absl::string_view at_limit) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error), "; ");
  switch (error) {
    case EPERM:
    case EACCES:
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::FailedPreconditionError(absl::StrCat(
          text,
          "the kernel or this container's sandbox does not allow the call: epd needs Linux 5.3 or "
          "newer, and a "
          "seccomp profile that allows memfd_create, fallocate, pidfd_open and pidfd_send_signal"));
    default:
      return absl::ResourceExhaustedError(absl::StrCat(text, at_limit));
  }
}

}  // namespace epd
