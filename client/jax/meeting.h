// What a rank says outside of XLA's programs: that it comes to a call of roles, or that it does not.
#pragma once

#include <cstdint>
#include <string>

#include "client/jax/groups.h"
#include "client/jax/status.h"

namespace epd::jax {

// Under which key, in which group of this process, and of which of its ranks.
struct Meeting {
  std::string alias;
  std::uint32_t domain = 0;
  std::uint32_t position = 0;
  std::string key;  // As CallSite::key.
  // Sizes of the group, as in CallConfig.
  std::uint32_t ranks = 0;
  std::uint32_t experts = 0;
  std::uint32_t local_experts = 0;
  std::uint32_t max_tokens = 0;
};

// Waits until all ranks of the domain have come to `meeting`: an exchange of no tokens. Errors are those of an
// operation, the same on every rank.
Status Meet(Groups& groups, const Meeting& meeting);

// Takes this rank's place in the next use of `meeting.key`: it fails with `reason` on every rank. Returns `reason`,
// with its place, or why that use had failed before.
Status Refuse(Groups& groups, const Meeting& meeting, const Status& reason);

}  // namespace epd::jax
