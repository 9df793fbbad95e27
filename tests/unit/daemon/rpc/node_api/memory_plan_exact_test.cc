// Goal: the plan of a group's memory says to the page what the operations then ask for at their largest, and which stream regions
// the worker makes.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client/c/prepare_operation.h"
#include "client/c/rows_operation.h"
#include "daemon/rpc/node_api/memory_plan.h"
#include "daemon/worker/staging/staging.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPool = uint64_t{1} << 28;

struct Case {
  uint32_t num_ranks = 0;
  uint32_t top_k = 0;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  epd_dtype dtype = EPD_DTYPE_FLOAT32;
  bool worker_executor = false;

  uint64_t element_bytes() const { return client::DtypeBytes(dtype); }
  // Every route of every rank ends at rank 0 and fills its receive buffer.
  uint32_t slots() const { return num_ranks * tokens * top_k; }
  uint32_t num_experts() const { return num_ranks * top_k; }
};

// Rank 0 of a formed group, with a plan, and buffers that the operations are given but do not read.
class Rank {
 public:
  explicit Rank(const Case& c) : case_(c), memory_(uint64_t{c.slots()} * c.hidden * 8 + 64) {
    formation_.group_id = 7;
    formation_.epoch = 1;
    formation_.plan_ids = {.group_id = 7, .epoch = 1};
    client::GroupSpec& spec = formation_.spec;
    spec.num_ranks = c.num_ranks;
    spec.num_experts = c.num_experts();
    spec.max_tokens_per_rank = c.tokens;
    spec.recv_capacity_per_rank = c.slots();
    spec.hidden = c.hidden;
    spec.max_token_dtype = static_cast<int32_t>(EPD_DTYPE_FLOAT32);
    spec.executor = c.worker_executor ? client::Executor::kWorker : client::Executor::kClient;
    for (uint32_t route = 0; route < c.tokens * c.top_k; ++route) idx_.push_back(route % c.top_k);
    MakePlan();
  }

  uint64_t Prepare() {
    epd_prepare_args args = {};
    args.top_k = case_.top_k;
    args.num_tokens = case_.tokens;
    args.topk_idx = idx_.data();
    args.idx_bytes = 4;
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.token_counts = counts_.data();
    args.total_recv = &total_recv_;
    client::PrepareOperation operation(args);
    return Asked(operation);
  }
  uint64_t Scatter(shm::Kind kind) {
    epd_scatter_args args = {};
    Describe(args);
    args.tokens = memory_.data();
    args.recv_tokens = memory_.data();
    if (kind == shm::Kind::kDispatch) {
      args.topk_weights = reinterpret_cast<const float*>(memory_.data());
      args.recv_topk_weights = reinterpret_cast<float*>(memory_.data());
    }
    client::ScatterOperation operation(kind, args);
    return Asked(operation);
  }
  uint64_t Gather(shm::Kind kind) {
    epd_gather_args args = {};
    Describe(args);
    if (case_.element_bytes() > 4) args.dtype = EPD_DTYPE_FLOAT32;
    args.expert_rows = memory_.data();
    args.tokens = memory_.data();
    if (kind == shm::Kind::kDispatchBackward) {
      args.recv_topk_weights = reinterpret_cast<const float*>(memory_.data());
      args.topk_weights = reinterpret_cast<float*>(memory_.data());
    }
    client::GatherOperation operation(kind, args);
    return Asked(operation);
  }

 private:
  void MakePlan() {
    BuildPlanArgs build;
    build.spec = formation_.Routing(case_.top_k, 1);
    std::vector<int32_t> counts(uint64_t{case_.num_ranks} * case_.num_experts());
    for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) {
      for (uint32_t expert = 0; expert < case_.top_k; ++expert) {
        counts[rank * case_.num_experts() + expert] = static_cast<int32_t>(case_.tokens);
      }
    }
    plan_.resize(RoutingPlanBytes(build.spec));
    counts_.resize(case_.num_experts());
    build.ids = {.group_id = 7, .epoch = 1, .plan_id = 3};
    build.topk = {.data = idx_.data(), .type = IndexType::kInt32, .num_tokens = case_.tokens};
    build.counts = counts.data();
    build.plan = plan_.data();
    build.plan_bytes = plan_.size();
    build.token_counts = counts_.data();
    build.total_recv = &total_recv_;
    ASSERT_TRUE(BuildRoutingPlan(build).ok());
    ASSERT_EQ(total_recv_, static_cast<int32_t>(case_.slots())) << "the receive buffer is full";
  }
  template <typename Args>
  void Describe(Args& args) const {
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.top_k = case_.top_k;
    args.dtype = case_.dtype;
    args.hidden = case_.hidden;
    args.num_tokens = case_.tokens;
    args.recv_capacity = case_.slots();
  }
  // What the worker takes of the pool for the request, in pages.
  uint64_t Asked(client::Operation& operation) const {
    shm::SlotRequest request = {};
    const client::Status planned = operation.Plan(formation_, &request);
    EXPECT_TRUE(planned.ok()) << planned.message;
    Staging staging(kPool, kPage);
    const ArenaSetKey key{{SessionId(1), 0}};
    const auto lease = staging.Acquire(key);
    const auto grant = staging.Allocate(
        lease->set, shm::RoundUpToRegionAlignment(request.stage_bytes) + request.out_bytes);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? grant->region.bytes : 0;
  }

  const Case case_;
  client::Formation formation_;
  std::vector<int32_t> idx_;
  std::vector<uint8_t> plan_;
  std::vector<int32_t> counts_;
  int32_t total_recv_ = 0;
  std::vector<std::byte> memory_;
};

class MemoryPlanExactTest : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryPlanExactTest, IsWhatTheOperationsAskFor) {
  const Case& c = GetParam();
  GroupShape shape;
  shape.num_ranks = c.num_ranks;
  shape.num_experts = c.num_experts();
  shape.top_k = c.top_k;
  shape.max_tokens_per_rank = c.tokens;
  shape.recv_capacity_per_rank = c.slots();
  shape.hidden = c.hidden;
  shape.element_bytes = c.element_bytes();
  shape.worker_executor = c.worker_executor;
  const auto plan = PlanGroupMemory(shape, kPool);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Rank rank(c);
  EXPECT_EQ(plan->prepare_bytes_per_rank(), rank.Prepare());
  EXPECT_EQ(plan->dispatch_bytes_per_rank(), rank.Scatter(shm::Kind::kDispatch));
  EXPECT_EQ(plan->combine_backward_bytes_per_rank(), rank.Scatter(shm::Kind::kCombineBackward));
  EXPECT_EQ(plan->combine_bytes_per_rank(), rank.Gather(shm::Kind::kCombine));
  EXPECT_EQ(plan->dispatch_backward_bytes_per_rank(), rank.Gather(shm::Kind::kDispatchBackward));
}

INSTANTIATE_TEST_SUITE_P(Shapes, MemoryPlanExactTest,
                         ::testing::Values(Case{1, 1, 1, 1}, Case{2, 2, 16, 8}, Case{3, 5, 33, 129},
                                           Case{2, 4, 64, 512, EPD_DTYPE_BFLOAT16},
                                           Case{2, 2, 64, 256,
                                                static_cast<epd_dtype>(EPD_DTYPE_OPAQUE(8, 0))},
                                           Case{2, 2, 16, 8, EPD_DTYPE_FLOAT32, true},
                                           Case{3, 5, 33, 129, EPD_DTYPE_FLOAT16, true},
                                           Case{4, 3, 21, 77, EPD_DTYPE_FLOAT32, true}));

// `tokens`: of a rank in a call, each of 32 KiB.
void ExpectEagerBuffers(uint64_t pool, uint32_t num_ranks, uint64_t tokens) {
  Staging staging(pool, kPage);
  ArenaSetKey key;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) key.emplace_back(SessionId(rank + 1), 0);
  const ArenaSetId set = staging.Acquire(key)->set;
  GroupShape shape;
  shape.num_ranks = num_ranks;
  shape.num_experts = num_ranks;
  shape.top_k = 1;
  shape.max_tokens_per_rank = tokens;
  shape.recv_capacity_per_rank = num_ranks * tokens;
  shape.hidden = 8192;
  shape.element_bytes = 4;
  const auto plan = PlanGroupMemory(shape, pool);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const uint64_t stage_bytes :
       {plan->prepare_bytes_per_rank(), plan->dispatch_bytes_per_rank(),
        plan->combine_bytes_per_rank(), plan->dispatch_backward_bytes_per_rank(),
        plan->combine_backward_bytes_per_rank()}) {
    staging.WantEagerBuffers(set, stage_bytes, /*several=*/true);
  }
  staging.Committed(set, pool);
  EXPECT_EQ(plan->eager_bytes_per_rank(),
            staging.FindEagerArea(set).num_eager_buffers * shm::kEagerBufferBytes)
      << num_ranks << " ranks, " << tokens << " tokens, a pool of " << pool;
}

TEST(MemoryPlanEagerBuffersTest, AreThoseThatAnIdlePoolGives) {
  for (const uint64_t pool : {uint64_t{64} << 20, uint64_t{200} << 20, uint64_t{4} << 30}) {
    for (const uint32_t num_ranks : {1, 2, 4, 7, 16}) {
      for (const uint64_t tokens : {1, 20, 200, 2000}) ExpectEagerBuffers(pool, num_ranks, tokens);
    }
  }
}

}  // namespace
}  // namespace epd
