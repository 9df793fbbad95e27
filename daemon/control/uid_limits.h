// What the node has for all and what one uid may have of it: no user takes the share of another.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace epd {

// What the sessions of one uid have of a node, or may have at most.
struct UidShare {
  uint64_t sessions = 0;
  uint64_t groups = 0;         // Names of groups that they are members of, or ask for.
  uint64_t ranks = 0;          // Of Joins that the coordinator remembers, released ones too.
  uint64_t table_entries = 0;  // Of the tables of experts' owners in these Joins.
  uint64_t slots = 0;          // Op slots of the sessions, for all workers.
};

// Each part by the setting that limits it; checks, settings and answers to operators go by this table.
struct UidLimit {
  const char* setting;
  const char* what;
  uint64_t UidShare::*part;
};
inline constexpr UidLimit kUidLimits[] = {
    {"max_sessions_per_uid", "sessions", &UidShare::sessions},
    {"max_groups_per_uid", "groups", &UidShare::groups},
    {"max_ranks_per_uid", "ranks", &UidShare::ranks},
    {"max_table_entries_per_uid", "entries of tables of experts", &UidShare::table_entries},
    {"max_slots_per_uid", "op slots", &UidShare::slots},
};

inline constexpr UidShare kNoUidLimits = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                          UINT64_MAX};

struct NodeLimits {
  uint64_t max_groups = UINT64_MAX;
  UidShare per_uid = kNoUidLimits;
};

// What one uid has, and which of its processes have it. A group counts once, however many are members.
struct UidUse {
  UidShare all;
  std::map<int32_t, UidShare> of_pid;  // 0: processes that epd does not see.
};

// OK when `uid`, which has `use`, may have `more`.
//   RESOURCE_EXHAUSTED  names the limit, what is held and by whom, and the setting
absl::Status CheckShare(uint32_t uid, const UidUse& use, const UidShare& more,
                        const UidShare& limits);

}  // namespace epd
