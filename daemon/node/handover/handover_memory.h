// The state as sealed memory, and the exec that takes it along.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// A memfd with the state, sealed against every change.
//   RESOURCE_EXHAUSTED  memory or descriptors
absl::StatusOr<UniqueFd> WriteHandover(const v1::Handover& handover);

// What the program before this one has left, where this program was started by RunReplacement; taken once: programs that
// this one starts do not see it. Empty: it was started in another way.
//   DATA_LOSS  it cannot be read
absl::StatusOr<std::optional<v1::Handover>> TakeHandover();

// Runs `program` in this process with `args` (without the program's name) and the state. On the main thread: the other
// threads end. Returns only if the kernel refuses.
absl::Status RunReplacement(const std::string& program, const std::vector<std::string>& args,
                            const UniqueFd& state);

}  // namespace epd
