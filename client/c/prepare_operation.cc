#include "client/c/prepare_operation.h"

#include <cstring>

#include "client/c/plan_argument.h"
#include "kernels/recv_layout.h"
#include "kernels/region/region_layout.h"

namespace epd::client {

Status PrepareOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = shm::Kind::kPrepare;
  routing_ = formation.Routing(args_.top_k, args_.alignment);
  if (args_.rank < formation.spec.num_ranks) {
    num_local_experts_ = NumLocalExperts(routing_, static_cast<int32_t>(args_.rank));
  }
  if (Status s = CheckTokens(formation, args_.top_k, args_.num_tokens); !s.ok()) return s;
  if (Status s = FromKernel(CheckRoutingSpec(routing_)); !s.ok()) return s;
  if (args_.idx_bytes != 4 && args_.idx_bytes != 8) {
    return MakeStatus(Code::kInvalidArgument, "idx_bytes: got %u, expected 4 or 8",
                      args_.idx_bytes);
  }
  const size_t plan_bytes = RoutingPlanBytes(routing_);
  if (args_.handle_mem_bytes < plan_bytes) {
    return MakeStatus(Code::kInvalidArgument,
                      "handle_mem_bytes: got %zu, expected %zu for this group "
                      "with top_k %u (epd_handle_mem_size)",
                      args_.handle_mem_bytes, plan_bytes, args_.top_k);
  }
  if (args_.handle_mem == nullptr || args_.token_counts == nullptr || args_.total_recv == nullptr) {
    return MakeStatus(Code::kInvalidArgument,
                      "handle_mem, token_counts and total_recv must not be NULL");
  }
  topk_ = {.data = args_.topk_idx,
           .type = args_.idx_bytes == 8 ? IndexType::kInt64 : IndexType::kInt32,
           .num_tokens = static_cast<int64_t>(args_.num_tokens)};
  ids_ = formation.plan_ids;
  counts_.resize(static_cast<size_t>(routing_.num_experts));
  if (Status s = FromKernel(CountRoutes(routing_, topk_, counts_.data())); !s.ok()) return s;
  request->top_k = args_.top_k;
  request->alignment = args_.alignment == 0 ? 1 : args_.alignment;
  request->num_tokens = args_.num_tokens;
  const RegionLayout region = MakeLayout(
      shm::Kind::kPrepare,
      {.num_ranks = formation.spec.num_ranks, .num_experts = formation.spec.num_experts},
      MakeStorage(IsOnDevice(formation.spec), formation.spec.executor == Executor::kWorker));
  request->stage_bytes = region.stage_bytes;
  request->out_bytes = region.out_bytes;
  return {};
}

Status PrepareOperation::Stage(const Admitted& admitted) {
  std::memcpy(admitted.region.data(), counts_.data(), counts_.size() * sizeof(int32_t));
  return {};
}

Status PrepareOperation::Pull(const Admitted& admitted) {
  const size_t num_experts = counts_.size();
  std::vector<int32_t> all(num_experts * admitted.stages.size());
  for (size_t rank = 0; rank < admitted.stages.size(); ++rank) {
    StageRef stage = admitted.stages[rank];
    if (rank == args_.rank) stage = {counts_.data(), num_experts * sizeof(int32_t)};
    if (stage.base == nullptr || stage.bytes < num_experts * sizeof(int32_t)) {
      return MakeStatus(Code::kDataLoss, "the arena of rank %zu does not hold its counts", rank);
    }
    std::memcpy(all.data() + rank * num_experts, stage.base, num_experts * sizeof(int32_t));
  }
  counts_ = std::move(all);
  return Build(admitted);
}

Status PrepareOperation::TakeOutput(const Admitted& admitted, const std::byte* out) {
  counts_.resize(counts_.size() * admitted.stages.size());
  std::memcpy(counts_.data(), out, counts_.size() * sizeof(int32_t));
  return Build(admitted);
}

Status PrepareOperation::Build(const Admitted& admitted) {
  BuildPlanArgs build;
  build.spec = routing_;
  build.rank = static_cast<int32_t>(args_.rank);
  build.ids = ids_;
  build.ids.plan_id = admitted.plan_id;
  build.topk = topk_;
  build.counts = counts_.data();
  build.plan = args_.handle_mem;
  build.plan_bytes = args_.handle_mem_bytes;
  build.token_counts = args_.token_counts;
  build.total_recv = args_.total_recv;
  Status status = FromKernel(BuildRoutingPlan(build));
  // This rank's own routes were checked when they were counted: what is wrong is what a peer staged.
  if (status.code == Code::kInvalidArgument) status.code = Code::kDataLoss;
  return status;
}

uint32_t PrepareOperation::padded_rows() const {
  if (routing_.alignment <= 1) return 0;
  int64_t rows = 0;
  for (int32_t source = 0; source < routing_.num_ranks; ++source) {
    rows += RowsBetween(routing_, counts_.data(), source, static_cast<int32_t>(args_.rank));
  }
  return static_cast<uint32_t>(*args_.total_recv - rows);
}

void PrepareOperation::ZeroOutputs() {
  if (args_.handle_mem != nullptr) std::memset(args_.handle_mem, 0, args_.handle_mem_bytes);
  if (args_.total_recv != nullptr) *args_.total_recv = 0;
  if (args_.token_counts == nullptr || num_local_experts_ <= 0) return;
  std::memset(args_.token_counts, 0, static_cast<size_t>(num_local_experts_) * sizeof(int32_t));
}

}  // namespace epd::client
