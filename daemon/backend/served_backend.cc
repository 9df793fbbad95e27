#include "daemon/backend/served_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd {

absl::Status CheckServedBackend(absl::string_view asked, const std::vector<std::string>& serving,
                                absl::string_view no_cuda) {
  if (asked == "auto") return absl::OkStatus();
  // NCCL EP moves rows between cuda's devices; whether it is there is asked when a group enters.
  const bool on_device = asked == "cuda" || asked == "nccl_ep";
  const absl::string_view by = on_device ? "cuda" : asked;
  if (std::find(serving.begin(), serving.end(), by) != serving.end()) return absl::OkStatus();
  const bool no_device = on_device && !no_cuda.empty();
  return absl::FailedPreconditionError(absl::StrCat(
      "backend=", asked,
      no_device ? absl::StrCat(" cannot be served here: ", no_cuda, "; this node's worker serves ")
                : " is not in this version of epd, and this node's worker serves ",
      absl::StrJoin(serving, " and "), "; ask for backend=auto or backend=", serving.front(),
      " (epctl doctor says what this machine has)"));
}

}  // namespace epd
