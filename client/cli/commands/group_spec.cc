#include "client/cli/commands/command.h"

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

}  // namespace

epd::v1::GroupSpec SpecOf(const Options& options) {
  const SpecOptions& given = options.spec;
  epd::v1::GroupSpec spec;
  spec.set_name(options.group);
  spec.set_instance(given.instance);
  spec.set_tenant(given.tenant);
  spec.set_num_ranks(given.num_ranks);
  spec.set_num_experts(given.num_experts);
  spec.set_max_tokens_per_rank(given.max_tokens_per_rank);
  spec.set_recv_capacity_per_rank(given.recv_capacity_per_rank);
  spec.set_hidden(given.hidden);
  spec.set_top_k(given.top_k);
  spec.set_max_token_dtype(DtypeOf(given.dtype));
  spec.set_drop_on_overflow(given.drop_on_overflow);
  spec.set_executor(ExecutorOf(given.executor));
  spec.set_backend(given.backend);
  return spec;
}

}  // namespace epd::cli
