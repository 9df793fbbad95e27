#include <utility>

#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/memory_plan.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "proto/epd/v1/slots_layout.h"

namespace epd {
absl::Status Fill(const Node& node, const v1::PlanMemoryRequest& request,
                  v1::PlanMemoryResponse& response) {
  absl::StatusOr<GroupSpec> spec = FromProto(request.spec(), node.spec_defaults());
  if (!spec.ok()) return spec.status();
  if (spec->name.empty()) spec->name = "plan";  // A group that is only thought of needs no name.
  if (const absl::Status bad = Validate(*spec); !bad.ok()) return bad;
  GroupShape shape;
  shape.num_ranks = spec->num_ranks;
  shape.num_experts = spec->num_experts;
  shape.top_k = spec->top_k;
  shape.max_tokens_per_rank = spec->max_tokens_per_rank;
  shape.recv_capacity_per_rank = spec->recv_capacity_per_rank;
  shape.alignment = spec->alignment;
  shape.hidden = spec->hidden;
  shape.element_bytes = request.element_bytes() != 0
                            ? request.element_bytes()
                            : static_cast<uint64_t>(SizeBytes(spec->max_token_dtype));
  shape.worker_executor = spec->executor == Executor::kWorker;
  absl::StatusOr<v1::PlanMemoryResponse> plan =
      PlanGroupMemory(shape, node.settings().staging_bytes);
  if (!plan.ok()) return plan.status();
  response = *std::move(plan);
  response.set_slots_bytes_per_session(
      shm::SlotsLayout::For(features::kTakesManySlots,
                            static_cast<uint32_t>(node.settings().slots_per_session))
          .bytes());
  JudgePlan(shape.num_ranks, node.settings().staging_bytes,
            node.worker().figures().snapshot.pool_committed_bytes(), response);
  return absl::OkStatus();
}

}  // namespace epd
