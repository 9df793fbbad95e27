// What the operations on rows are called with, from a call site and where its arrays are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/c/epd_client.h"
#include "client/jax/call_site.h"

namespace epd::jax {

// The arrays of one call. Weights are null where the operation has none.
struct RowArrays {
  const void* handle_mem = nullptr;
  std::size_t handle_mem_bytes = 0;
  epd_dtype dtype{};
  const void* rows = nullptr;
  const float* weights = nullptr;
  void* out_rows = nullptr;
  float* out_weights = nullptr;
};

// Dispatch and combine backward scatter rows.
inline void SetArrays(epd_scatter_args& args, const RowArrays& arrays) {
  args.tokens = arrays.rows;
  args.topk_weights = arrays.weights;
  args.recv_tokens = arrays.out_rows;
  args.recv_topk_weights = arrays.out_weights;
}

// Combine and dispatch backward gather rows.
inline void SetArrays(epd_gather_args& args, const RowArrays& arrays) {
  args.expert_rows = arrays.rows;
  args.recv_topk_weights = arrays.weights;
  args.tokens = arrays.out_rows;
  args.topk_weights = arrays.out_weights;
}

template <typename Args>
Args MakeRowArguments(const CallConfig& config, const RowArrays& arrays) {
  Args args = {};
  args.struct_size = sizeof args;
  args.handle_mem = arrays.handle_mem;
  args.handle_mem_bytes = arrays.handle_mem_bytes;
  args.top_k = static_cast<std::uint32_t>(config.top_k);
  args.alignment = static_cast<std::uint32_t>(config.alignment);
  args.dtype = arrays.dtype;
  args.hidden = static_cast<std::uint32_t>(config.width);
  args.num_tokens = static_cast<std::uint64_t>(config.tokens);
  args.recv_capacity = static_cast<std::uint64_t>(config.sizes.recv_capacity);
  SetArrays(args, arrays);
  return args;
}

}  // namespace epd::jax
