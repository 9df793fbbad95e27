#include "client/c/plan_argument.h"

#include "client/c/operation.h"

namespace epd::client {
namespace {

using Ull = unsigned long long;

Status CheckSizes(const Formation& formation, const RowsArguments& args) {
  const GroupSpec& spec = formation.spec;
  const uint64_t element = DtypeBytes(args.dtype);
  if (element == 0) {
    return MakeStatus(Code::kInvalidArgument,
                      "dtype %d is unknown; expected EPD_DTYPE_FLOAT32, "
                      "EPD_DTYPE_BFLOAT16 or EPD_DTYPE_FLOAT16",
                      static_cast<int>(args.dtype));
  }
  const uint64_t widest = DtypeBytes(static_cast<epd_dtype>(spec.max_token_dtype));
  if (widest != 0 && element > widest) {
    return MakeStatus(Code::kInvalidArgument,
                      "dtype: got elements of %llu bytes, the group was formed "
                      "for max_token_dtype of %llu; form it with the wider one",
                      static_cast<Ull>(element), static_cast<Ull>(widest));
  }
  if (args.hidden != spec.hidden) {
    return MakeStatus(Code::kInvalidArgument, "hidden: got %u, the group was formed for %u",
                      args.hidden, spec.hidden);
  }
  if (args.recv_capacity > spec.recv_capacity_per_rank) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the group was formed for "
                      "recv_capacity_per_rank %u",
                      static_cast<Ull>(args.recv_capacity), spec.recv_capacity_per_rank);
  }
  return CheckTokens(formation, args.top_k, args.num_tokens);
}

}  // namespace

uint64_t DtypeBytes(epd_dtype dtype) {
  switch (dtype) {
    case EPD_DTYPE_FLOAT32:
      return 4;
    case EPD_DTYPE_BFLOAT16:
    case EPD_DTYPE_FLOAT16:
      return 2;
    case EPD_DTYPE_UNSPECIFIED:
      break;
  }
  return 0;
}

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

Status CheckRows(const Formation& formation, const RowsArguments& args, RoutingPlanView* plan) {
  if (Status s = CheckSizes(formation, args); !s.ok()) return s;
  const ViewPlanArgs view = {
      .plan = args.handle_mem,
      .bytes = args.handle_mem_bytes,
      .spec = formation.Routing(args.top_k, args.alignment),
      .rank = static_cast<int32_t>(args.rank),
      .ids = {.group_id = formation.group_id, .epoch = formation.epoch, .plan_id = 0},
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
  request->demand = static_cast<uint64_t>(TotalRecv(plan.spec, plan.counts, plan.rank));
}

}  // namespace epd::client
