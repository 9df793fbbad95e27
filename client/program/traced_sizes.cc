#include "client/program/traced_sizes.h"

#include <string>

namespace epd::program {
namespace {

struct Size {
  const char* field;
  std::int64_t traced;
  std::int64_t bootstrapped;
};

// OK, or INVALID_ARGUMENT: how a program's size differs from the group's, and what to do.
Status Difference(const Size& size, const char* relation) {
  return {Code::kInvalidArgument,
          std::string("this executable was traced with ") + size.field + "=" +
              std::to_string(size.traced) + ", which " + relation + " the bootstrapped " +
              size.field + "=" + std::to_string(size.bootstrapped) +
              "; trace it again (a new jax.jit of the function, or jax.clear_caches())"};
}

}  // namespace

Status CheckPlaces(const GroupConfig& config, const epd_program_sizes* traced) {
  if (traced == nullptr) return {};
  for (const Size& size : {Size{"ep_size", traced->ranks, config.spec.num_ranks},
                           Size{"joined_by_rank", traced->by_rank, config.by_rank}}) {
    if (size.traced != size.bootstrapped) return Difference(size, "is not");
  }
  return {};
}

Status CheckSizes(const GroupConfig& config, const epd_program_sizes* traced) {
  if (traced == nullptr) return {};
  const epd_group_spec& spec = config.spec;
  const std::int64_t hidden = traced->hidden == 0 ? spec.hidden : traced->hidden;
  for (const Size& size :
       {Size{"num_experts", traced->experts, spec.num_experts},
        Size{"num_local_experts", traced->local_experts, config.local_experts},
        Size{"expert_owner's digest", traced->owners, config.owners},
        Size{"max_tokens_per_rank", traced->max_tokens, spec.max_tokens_per_rank},
        Size{"hidden_dim", hidden, spec.hidden}}) {
    if (size.traced != size.bootstrapped) return Difference(size, "is not");
  }
  const Size capacity = {"recv_capacity_per_rank", traced->recv_capacity,
                         spec.recv_capacity_per_rank};
  if (capacity.traced > capacity.bootstrapped) return Difference(capacity, "is more than");
  return {};
}

}  // namespace epd::program
