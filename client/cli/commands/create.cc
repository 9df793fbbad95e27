#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

epd::v1::Dtype DtypeOf(const std::string& name) {
  if (name == "float32") return epd::v1::DTYPE_FLOAT32;
  return name == "float16" ? epd::v1::DTYPE_FLOAT16 : epd::v1::DTYPE_BFLOAT16;
}

epd::v1::Executor ExecutorOf(const std::string& name) {
  if (name == "client") return epd::v1::EXECUTOR_CLIENT;
  return name == "worker" ? epd::v1::EXECUTOR_WORKER : epd::v1::EXECUTOR_UNSPECIFIED;
}

epd::v1::GroupSpec SpecOf(const Options& options) {
  const CreateOptions& create = options.create;
  epd::v1::GroupSpec spec;
  spec.set_name(options.group);
  spec.set_instance(create.instance);
  spec.set_tenant(create.tenant);
  spec.set_num_ranks(create.num_ranks);
  spec.set_num_experts(create.num_experts);
  spec.set_max_tokens_per_rank(create.max_tokens_per_rank);
  spec.set_recv_capacity_per_rank(create.recv_capacity_per_rank);
  spec.set_hidden(create.hidden);
  spec.set_top_k(create.top_k);
  spec.set_max_token_dtype(DtypeOf(create.dtype));
  spec.set_drop_on_overflow(create.drop_on_overflow);
  spec.set_executor(ExecutorOf(create.executor));
  spec.set_backend(create.backend);
  return spec;
}

Report Plan(const CommandContext& context) {
  epd::v1::PlanMemoryRequest request;
  *request.mutable_spec() = SpecOf(context.options);
  Report report = CallNode(context, "PlanMemory", &epd::v1::Node::Stub::PlanMemory, request);
  if (report.message == nullptr) return report;
  report.table = PlanTable(static_cast<const epd::v1::PlanMemoryResponse&>(*report.message));
  return report;
}

}  // namespace

Report RunCreate(const CommandContext& context) {
  if (context.options.create.plan_only) return Plan(context);
  epd::v1::CreateGroupRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = SpecOf(context.options);
  Report report = CallNode(context, "CreateGroup", &epd::v1::Node::Stub::CreateGroup, request);
  if (report.message == nullptr) return report;
  epd::v1::ListGroupsResponse shown;
  *shown.add_groups() = static_cast<const epd::v1::CreateGroupResponse&>(*report.message).group();
  report.table = GroupsTable(shown);
  return report;
}

}  // namespace epd::cli
