// Tenants and operations for tests of single parts of the engine.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

inline constexpr SessionId kSession{1};

// Of `num_ranks` ranks, all of them of kSession.
inline std::unique_ptr<Tenant> MakeTenant(uint32_t num_ranks = 2, GroupId group = GroupId(7)) {
  TenantStart start{.group = group,
                    .epoch = Epoch(3),
                    .formation = Formation(1),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = absl::AbortedError("before")};
  start.spec.name = "g";
  start.spec.num_ranks = num_ranks;
  for (uint32_t r = 0; r < num_ranks; ++r) {
    start.members.push_back(RankHolder{.rank = Rank(r),
                                       .node = {},
                                       .session = kSession,
                                       .arena_index = r,
                                       .host = "host",
                                       .pid = 1,
                                       .client_name = {}});
  }
  return std::make_unique<Tenant>(std::move(start));
}

// The key of an operation that differs from others by its ordinal.
inline OperationKey MakeKey(uint32_t ordinal) {
  return {.execution = {}, .ordinal = ordinal, .occurrence = 0, .named = false};
}

}  // namespace epd
