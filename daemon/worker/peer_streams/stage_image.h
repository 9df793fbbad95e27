// What of a rank's stage another node needs, and where it belongs in the rank's arena there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/announcement.h"
#include "kernels/routing_spec.h"

namespace epd {

// A published stage in client memory, which its rank may change at any moment.
struct PublishedStage {
  const char* base = nullptr;
  Announcement said;  // Its sizes fit the region.
  Rank rank;
  RoutingSpec spec;  // Of the group, with the call's top_k and alignment. Borrows expert_owner.
};

// Bytes for one place of the region on the other node.
struct ImagePiece {
  uint64_t offset = 0;  // From the start of the region there.
  uint64_t bytes = 0;
  const char* from = nullptr;  // In the stage; null: the next bytes of `made`.
};

// Ordered; the pieces do not overlap.
struct StageImage {
  std::string made;  // All of it, if any, is one piece at the start of the region.
  std::vector<ImagePiece> pieces;
  uint64_t bytes = 0;
};

// A scatter's stage is cut down to a smaller one that holds each row once that any of
// `destinations` gets, with the routes to these ranks. Of a gather's stage the rows go that are
// theirs, each to its old place; which these are say the counts behind the stage
// (region_layout.h). Reads the routes and counts once, so later changes do no harm.
//   DATA_LOSS  the stage is not what the call announced, or is damaged
absl::StatusOr<StageImage> MakeImage(const PublishedStage& stage,
                                     const std::vector<Rank>& destinations);

}  // namespace epd
