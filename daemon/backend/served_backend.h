// Which groups a worker serves: what is asked for by name and is not there is an error, never another
// backend.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace epd {

// `asked`: of a group's spec; `serving`: the name of this worker's backend. Only "auto" leaves the
// choice to the worker.
//   FAILED_PRECONDITION  another one is asked for
absl::Status CheckServedBackend(absl::string_view asked, absl::string_view serving);

}  // namespace epd
