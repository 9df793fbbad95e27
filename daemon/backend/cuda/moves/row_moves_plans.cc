// What becomes of the ranks' plans before rows move by them: each is copied and checked, all in a few launches, whatever the
// number of ranks.
#include <algorithm>

#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/cuda/moves/row_moves.h"

namespace epd::cuda {
RowMoves::PlanWork RowMoves::PlanWorkOf(const MovePlaces& places) const {
  PlanWork work;
  const RoutingSpec spec = DeviceSpec(places);
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!sees_plan(rank)) continue;
    const DevicePointer plan = places.device + layout_.plans[rank];
    const uint64_t bytes = PlanCopyBytes(rank);
    work.copies.push_back(
        {At<const uint8_t>(Region(places, rank), 0), At<uint8_t>(plan, 0), bytes});
    work.bytes = std::max(work.bytes, bytes);
    if (bytes < plan_bytes_) continue;
    auto* sums = At<uint64_t>(places.device, layout_.sums[rank]);
    work.sums.push_back({At<const uint8_t>(plan, 0), spec, sums, {}});
    VerifyPlan::Args check;
    check.plan = At<const uint8_t>(plan, 0);
    check.spec = spec;
    check.rank = static_cast<int32_t>(rank);
    check.ids = {group_.group_id, group_.epoch, job_.plan_id};
    check.num_tokens = static_cast<int64_t>(job_.parts[rank].num_tokens);
    check.sums = sums;
    check.report = At<ReportWord>(places.device, layout_.reports) + rank;
    work.checks.push_back(check);
  }
  return work;
}

void RowMoves::WritePlanWork(const MovePlaces& places) const {
  const PlanWork work = PlanWorkOf(places);
  Write(places.host + layout_.plan_copies, work.copies);
  Write(places.host + layout_.plan_sums, work.sums);
  Write(places.host + layout_.plan_checks, work.checks);
}

void RowMoves::VerifyPlans(const MovePlaces& places, const DeviceShape& device,
                           StreamSteps& steps) const {
  const PlanWork work = PlanWorkOf(places);
  PlanBatch batch;
  batch.copies = At<const CopyPlan::Args>(places.device, layout_.plan_copies);
  batch.num_copies = static_cast<int32_t>(work.copies.size());
  batch.bytes = work.bytes;
  batch.sums = At<const SumPlan::Args>(places.device, layout_.plan_sums);
  batch.plans = At<const VerifyPlan::Args>(places.device, layout_.plan_checks);
  batch.num_whole = static_cast<int32_t>(work.checks.size());
  batch.spec = spec_;
  steps.Launch(VerifyPlansLaunches(batch, device));
}

}  // namespace epd::cuda
