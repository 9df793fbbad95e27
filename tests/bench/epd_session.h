// The C API with exceptions instead of codes, for the benchmark's programs.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/c/epd_client.h"
#include "tests/bench/bench_rank.h"

namespace epd::bench {

// Throws std::runtime_error with epd's text if `call(error)` does not return EPD_OK.
template <typename Call>
void Check(const Call& call) {
  auto error = std::make_unique<epd_error>();
  error->struct_size = sizeof *error;
  if (call(error.get()) != EPD_OK) throw std::runtime_error(error->message);
}

struct LeaveGroup {
  void operator()(epd_group* group) const { epd_leave(group, nullptr); }
};
using GroupPtr = std::unique_ptr<epd_group, LeaveGroup>;

// One session with the daemon of EPD_SOCKET; never starts one.
class Session {
 public:
  explicit Session(const char* name) {
    epd_connect_args args = {};
    args.struct_size = sizeof args;
    args.client_name = name;
    args.no_autostart = 1;
    Check([&](epd_error* error) { return epd_connect(&args, &client_, error); });
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { epd_disconnect(client_); }

  GroupPtr Join(const epd_group_spec& spec, const std::vector<uint32_t>& ranks) {
    epd_join_args args = {};
    args.struct_size = sizeof args;
    args.spec = &spec;
    args.ranks = ranks.data();
    args.num_ranks = ranks.size();
    epd_group* group = nullptr;
    Check([&](epd_error* error) { return epd_join(client_, &args, &group, error); });
    return GroupPtr(group);
  }

 private:
  epd_client* client_ = nullptr;
};

// What a group allows beyond the problem's own sizes, so that tenants of several sizes share one.
inline uint64_t AtLeast(const char* variable, int64_t value) {
  const char* const given = std::getenv(variable);
  const uint64_t wanted = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  return std::max(static_cast<uint64_t>(value), wanted);
}

// `name` must outlive the spec.
inline epd_group_spec SpecOf(const Problem& problem, const char* name) {
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = name;
  spec.num_ranks = static_cast<uint32_t>(problem.num_ranks);
  spec.num_experts = static_cast<uint32_t>(problem.num_experts);
  spec.max_tokens_per_rank =
      static_cast<uint32_t>(AtLeast("EPD_BENCH_MAX_TOKENS", problem.num_tokens));
  spec.recv_capacity_per_rank =
      static_cast<uint32_t>(AtLeast("EPD_BENCH_MAX_CAPACITY", problem.recv_capacity));
  spec.hidden = static_cast<uint32_t>(problem.hidden);
  spec.top_k = static_cast<uint32_t>(problem.top_k);
  spec.max_token_dtype = EPD_DTYPE_BFLOAT16;
  return spec;
}

inline size_t HandleMemSize(const Problem& problem) {
  return epd_handle_mem_size(
      static_cast<uint32_t>(problem.num_ranks), static_cast<uint32_t>(problem.num_experts),
      static_cast<uint32_t>(AtLeast("EPD_BENCH_MAX_TOKENS", problem.num_tokens)),
      static_cast<uint32_t>(problem.top_k));
}

inline epd_key NamedKey(const char* name) {
  epd_key key = {};
  key.struct_size = sizeof key;
  key.name = name;
  key.execution = EPD_EXECUTION_NEXT;
  return key;
}

}  // namespace epd::bench
