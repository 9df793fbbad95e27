#include "daemon/backend/served_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/epd/v1/backends.h"

namespace epd {

absl::Status CheckServedBackend(const std::string& asked, const std::vector<std::string>& serving,
                                absl::string_view no_cuda) {
  // Whether a library is there that moves rows between devices is asked when a group enters.
  const BackendTraits* const traits = FindBackend(asked);
  const std::string by = traits == nullptr ? asked : traits->served_by;
  if (traits != nullptr && by.empty()) return absl::OkStatus();
  if (std::find(serving.begin(), serving.end(), by) != serving.end()) return absl::OkStatus();
  const bool no_device = IsOnDevice(asked) && !no_cuda.empty();
  return absl::FailedPreconditionError(absl::StrCat(
      "backend=", asked,
      no_device ? absl::StrCat(" cannot be served here: ", no_cuda, "; this node's worker serves ")
                : " is not in this version of epd, and this node's worker serves ",
      absl::StrJoin(serving, " and "), "; ask for backend=auto or backend=", serving.front(),
      " (epctl doctor says what this machine has)"));
}

}  // namespace epd
