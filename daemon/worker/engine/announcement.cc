#include "daemon/worker/engine/announcement.h"

#include "absl/strings/str_cat.h"

namespace epd {

std::string KindName(shm::Kind kind) {
  switch (kind) {
    case shm::Kind::kPrepare:
      return "prepare";
    case shm::Kind::kDispatch:
      return "dispatch";
    case shm::Kind::kCombine:
      return "combine";
    case shm::Kind::kDispatchBackward:
      return "dispatch_backward";
    case shm::Kind::kCombineBackward:
      return "combine_backward";
  }
  return absl::StrCat("kind ", static_cast<uint32_t>(kind));
}

Announcement CopyAnnouncement(const shm::SlotRequest& request) {
  return Announcement{
      .dtype = request.dtype,
      .has_weights = request.has_weights,
      .top_k = request.top_k,
      .alignment = request.alignment,
      .row_bytes = request.row_bytes,
      .plan_id = request.plan_id,
      .spec_hash = request.spec_hash,
      .kind = request.kind,
      .num_tokens = request.num_tokens,
      .recv_capacity = request.recv_capacity,
      .demand = request.announce.demand,
      .stage_bytes = request.stage_bytes,
      .out_bytes = request.out_bytes,
      .plan_bytes = request.plan_bytes,
      .reads_many_eager_buffers = request.step != shm::Step::kStreamAnnounce &&
                                  (request.announce.client & shm::kReadsManyEagerBuffers) != 0,
  };
}

std::string Describe(const OperationKey& key) {
  return absl::StrCat("execution=", key.execution.number, " ordinal=", key.ordinal,
                      " occurrence=", key.occurrence);
}

}  // namespace epd
