// Which groups a worker serves: what is asked for by name and is not there is an error, never another
// backend.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace epd {

// `asked`: of a group's spec; `serving`: the names of this worker's backends; `no_cuda`: why "cuda"
// is not one of them, "" where nobody has looked. Only "auto" leaves the choice to the worker.
//   FAILED_PRECONDITION  another one is asked for
absl::Status CheckServedBackend(const std::string& asked, const std::vector<std::string>& serving,
                                absl::string_view no_cuda);

}  // namespace epd
