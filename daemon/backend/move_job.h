// One operation's rows, to be moved by the worker between the regions of its ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/core/group_spec.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Names a move between its start and its end; any number that the caller finds useful.
using MoveId = uint64_t;

// What is equal on all ranks of the group; checked by epd when the group was formed.
struct MoveGroup {
  uint64_t group_id = 0;
  uint64_t epoch = 0;
  uint32_t uid = 0;  // Of its sessions here, which are all of one.
  GroupSpec spec;
  std::vector<int32_t> expert_owner = {};  // The spec's, as kernels take it.
  // Of a group on several nodes whose rows go by a communicator (member_moves.h).
  uint64_t communicator = 0;
  std::vector<int> member_of_rank = {};  // [num_ranks]
  uint64_t formation = 0;                // Tells the tenant's arenas from those that it had before.
};

// One rank's part. Sizes were checked against the region; everything in the region is client
// memory.
struct MovePart {
  int arena = 0;  // Index in the set.
  // Else the rank is on another node: its stage stands at the start of the region, without a plan in front, and its
  // output is made there.
  bool local = true;
  // ... or on another device of this node, which reads the rank's region where it is: with a plan in front, and num_tokens and
  // recv_capacity known when its worker has said so (cuda/members/direct_peers.h).
  bool mapped = false;
  uint64_t num_tokens = 0;
  uint64_t recv_capacity = 0;  // Slots.
  // Of the region, from the start of the arena; proto/epd/v1/region_layout.h.
  uint64_t stage_offset = 0;
  uint64_t stage_bytes = 0;
  uint64_t out_offset = 0;  // From the start of the arena.
  uint64_t out_bytes = 0;
};

struct MoveJob {
  shm::Kind kind = shm::Kind::kPrepare;
  uint32_t dtype = 0;  // 1 float32, 2 bfloat16, 3 float16; 0 for prepare.
  bool has_weights = false;
  uint32_t top_k = 0;
  uint32_t alignment = 0;
  uint64_t row_bytes = 0;
  uint64_t plan_id = 0;
  std::vector<MovePart> parts;  // [num_ranks], by rank.
};

}  // namespace epd
