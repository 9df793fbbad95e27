// What one session, tenant or uid may have of a worker, so that nobody takes another one's share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/epd/v1/segment.h"

namespace epd {

struct EngineLimits {
  size_t operations_per_session = shm::kSlotsPerSession;  // That it takes part in.
  size_t operations_per_uid = shm::kMaxOperations;        // Open ones of its tenants.
  // Staging of operations at the same time, over all arenas here; that of a uid with what its dead sessions
  // still hold. Of device memory a group has what it was formed with.
  uint64_t staging_per_tenant = UINT64_MAX;
  uint64_t staging_per_uid = UINT64_MAX;
  absl::Duration undecided = absl::InfiniteDuration();  // Cuts what groups ask for.
};

}  // namespace epd
