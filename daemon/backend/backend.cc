#include "daemon/backend/backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/epd/v1/backends.h"

namespace epd {

absl::StatusOr<Backend*> FindServing(const Backends& backends, const std::string& asked,
                                     absl::string_view no_cuda) {
  // Whether a library is there that moves rows between devices is asked when a group enters.
  const BackendTraits* const traits = FindBackend(asked);
  const std::string by = traits == nullptr ? asked : traits->served_by;
  if (traits != nullptr && by.empty()) return backends.front().get();
  std::vector<std::string> names;
  for (const std::unique_ptr<Backend>& one : backends) {
    if (one->name() == by) return one.get();
    names.push_back(one->name());
  }
  const bool no_device = IsOnDevice(asked) && !no_cuda.empty();
  return absl::FailedPreconditionError(absl::StrCat(
      "backend=", asked,
      no_device ? absl::StrCat(" cannot be served here: ", no_cuda, "; this node's worker serves ")
                : " is not in this version of epd, and this node's worker serves ",
      absl::StrJoin(names, " and "), "; ask for backend=", names.front(),
      " (epctl doctor says what this machine has)"));
}

}  // namespace epd
