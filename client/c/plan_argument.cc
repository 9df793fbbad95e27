#include "client/c/plan_argument.h"

#include "client/c/operation.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd::client {
namespace {

using Ull = unsigned long long;

}  // namespace

uint64_t DtypeBytes(epd_dtype dtype) { return shm::DtypeBytes(static_cast<uint32_t>(dtype)); }

Status CheckTokens(const Formation& formation, uint32_t top_k, uint64_t num_tokens) {
  const GroupSpec& spec = formation.spec;
  if (top_k == 0 || (spec.top_k != 0 && top_k > spec.top_k)) {
    return MakeStatus(Code::kInvalidArgument, "top_k: got %u, the group was formed for 1 to %u",
                      top_k, spec.top_k);
  }
  if (num_tokens > spec.max_tokens_per_rank) {
    return MakeStatus(Code::kInvalidArgument,
                      "num_tokens: got %llu, the group was formed for "
                      "max_tokens_per_rank %u",
                      static_cast<Ull>(num_tokens), spec.max_tokens_per_rank);
  }
  return {};
}

Status CheckSizes(const Formation& formation, const RowsArguments& args) {
  const GroupSpec& spec = formation.spec;
  const uint64_t element = DtypeBytes(args.dtype);
  if (element == 0) {
    return MakeStatus(Code::kInvalidArgument, "dtype %d is no epd_dtype",
                      static_cast<int>(args.dtype));
  }
  // What is only moved may be wider than what the group sums; its bytes are admitted as they come.
  const uint64_t widest = shm::IsReducible(static_cast<uint32_t>(args.dtype))
                              ? DtypeBytes(static_cast<epd_dtype>(spec.max_token_dtype))
                              : 8;
  if (args.hidden == 0 || args.hidden * element > spec.hidden * widest) {
    return MakeStatus(Code::kInvalidArgument,
                      "hidden: got %u elements of %llu bytes, the group was formed for %u of %llu "
                      "bytes; form it with a larger hidden or a wider max_token_dtype",
                      args.hidden, static_cast<Ull>(element), spec.hidden,
                      static_cast<Ull>(widest));
  }
  if (args.recv_capacity > spec.recv_capacity_per_rank) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the group was formed for "
                      "recv_capacity_per_rank %u",
                      static_cast<Ull>(args.recv_capacity), spec.recv_capacity_per_rank);
  }
  return CheckTokens(formation, args.top_k, args.num_tokens);
}

Status CheckRows(const Formation& formation, const RowsArguments& args, RoutingPlanView* plan) {
  if (Status s = CheckSizes(formation, args); !s.ok()) return s;
  const ViewPlanArgs view = {
      .plan = args.handle_mem,
      .bytes = args.handle_mem_bytes,
      .spec = formation.Routing(args.top_k, args.alignment),
      .rank = static_cast<int32_t>(args.rank),
      .ids = formation.plan_ids,
  };
  if (Status s = FromKernel(ViewRoutingPlan(view, plan)); !s.ok()) return s;
  if (static_cast<uint64_t>(plan->num_tokens) == args.num_tokens) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "num_tokens: got %llu, handle_mem was prepared for %lld",
                    static_cast<Ull>(args.num_tokens), static_cast<long long>(plan->num_tokens));
}

void DescribeRows(const RowsArguments& args, const RoutingPlanView& plan,
                  shm::SlotRequest* request) {
  request->dtype = static_cast<uint32_t>(args.dtype);
  request->top_k = args.top_k;
  request->alignment = args.alignment == 0 ? 1 : args.alignment;
  request->row_bytes = args.hidden * DtypeBytes(args.dtype);
  request->plan_id = plan.ids.plan_id;
  request->num_tokens = args.num_tokens;
  request->recv_capacity = args.recv_capacity;
  request->announce.demand = static_cast<uint64_t>(TotalRecv(plan.spec, plan.counts, plan.rank));
}

}  // namespace epd::client
