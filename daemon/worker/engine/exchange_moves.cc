// The worker moves an operation's rows: what its mover is told, and what comes of it.
#include <utility>

#include "daemon/worker/engine/exchange.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {

void Exchange::StartMove(Operation& operation, absl::Time now) {
  operation.phase = Phase::kMoving;
  operation.phase_since = now;
  operation.moving = true;
  const Tenant& tenant = *operation.tenant;
  const Announcement& said = operation.parts[0].said;  // All agree.
  MoveJob job{.kind = said.kind,
              .dtype = said.dtype,
              .has_weights = said.has_weights != 0,
              .top_k = said.top_k,
              .alignment = said.alignment,
              .row_bytes = said.row_bytes,
              .plan_id = said.plan_id,
              .parts = {}};
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Announcement& part = operation.parts[r].said;
    const RegionView view = ViewOf(operation, r);
    if (!tenant.local(r)) {
      job.parts.push_back(MovePart{.arena = tenant.arena_of_rank[r],
                                   .local = false,
                                   .stage_offset = view.offset,
                                   .stage_bytes = view.bytes});
      continue;
    }
    job.parts.push_back(MovePart{.arena = tenant.arena_of_rank[r],
                                 .num_tokens = part.num_tokens,
                                 .recv_capacity = part.recv_capacity,
                                 .stage_offset = view.offset,
                                 .stage_bytes = part.stage_bytes,
                                 .out_offset = view.out_offset,
                                 .out_bytes = view.out_bytes});
  }
  effects_.push_back(MoveRows{.operation = operation.id,
                              .group = tenant.start.group,
                              .formation = tenant.start.formation,
                              .set = tenant.set,
                              .job = std::move(job)});
}

void Exchange::RowsMoved(OperationId id, const absl::Status& status, absl::Time now) {
  now_ = now;
  const auto found = operations_.find(id);
  if (found == operations_.end() || !found->second->moving) return;
  Operation& operation = *found->second;
  operation.moving = false;
  if (operation.phase == Phase::kFailed) {
    CloseIfOver(operation);
  } else if (!status.ok()) {
    FailWithExecution(operation, status);
  } else if (operation.tenant->peers.has_value()) {
    TellPublished(operation, now);
  } else {
    DecideGood(operation, now);
  }
  FinishEvent(now);
}

RegionView Exchange::ViewOf(const Operation& operation, uint32_t rank) const {
  const Region& region = *operation.region;
  const Announcement& said = operation.parts[rank].said;
  return RegionView{.offset = region.offset,
                    .bytes = region.bytes,
                    .out_offset = region.offset + shm::RoundUpToRegionAlignment(said.stage_bytes),
                    .out_bytes = said.out_bytes,
                    .eager = operation.tenant->may_send_eagerly()
                                 ? staging_.FindEagerArea(operation.tenant->set)
                                 : EagerArea()};
}

}  // namespace epd
