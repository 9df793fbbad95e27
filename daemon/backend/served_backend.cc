#include "daemon/backend/served_backend.h"

#include "absl/strings/str_cat.h"

namespace epd {

absl::Status CheckServedBackend(absl::string_view asked, absl::string_view serving) {
  if (asked == "auto" || asked == serving) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "backend=", asked, " is not in this version of epd, and this node's worker serves ", serving,
      "; ask for backend=auto or backend=", serving, " (epctl doctor says what this machine has)"));
}

}  // namespace epd
