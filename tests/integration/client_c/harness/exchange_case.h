// One exchange as plain data: inputs from a seed, and what every rank must get, computed by plain
// loops that share no code with the kernels.
//
// All values are small integers, exact in fp32, bf16 and fp16, and so are their sums: results
// compare bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/epd_client.h"

namespace epd::testing {

enum class Routing { kRandom, kNone, kOneExpert, kSomeMissing };

struct ExchangeCase {
  uint32_t num_ranks = 2;
  uint32_t num_experts = 4;
  uint32_t top_k = 2;
  uint32_t hidden = 16;
  uint32_t alignment = 1;
  uint32_t capacity = 0;  // 0: enough for everything.
  epd_dtype dtype = EPD_DTYPE_FLOAT32;
  Routing routing = Routing::kRandom;
  bool drop = false;
  bool worker_executor = false;
  bool wide_indices = false;                // int64.
  std::vector<uint32_t> num_tokens = {};    // [num_ranks]; empty: 8 each.
  std::vector<uint32_t> expert_owner = {};  // [num_experts]; empty: blocks.
  std::vector<uint32_t> capacities = {};    // [num_ranks] of calls; empty: the group's for each.
  // Elements of a row in each of the arrays in which it goes to the experts, together `hidden`; empty: one array.
  std::vector<uint32_t> arrays = {};
  uint32_t seed = 1;
  bool distinct = false;  // No token names an expert twice.

  uint32_t tokens(uint32_t rank) const { return num_tokens.empty() ? 8 : num_tokens[rank]; }
  uint32_t max_tokens() const;
  uint32_t recv_capacity() const;  // Of the group.
  // Of the calls of one rank.
  uint32_t recv_capacity(uint32_t rank) const {
    return capacities.empty() ? recv_capacity() : capacities[rank];
  }
  uint32_t owner(uint32_t expert) const;
  uint32_t num_local_experts(uint32_t rank) const;
  uint32_t element_bytes() const { return dtype == EPD_DTYPE_FLOAT32 ? 4 : 2; }
  uint32_t row_bytes() const { return hidden * element_bytes(); }
  std::string ToString() const;
};

using Bytes = std::vector<uint8_t>;

// What one rank puts in and must get out. Rows are in the case's dtype.
struct RankData {
  std::vector<int64_t> topk_idx;      // [T, K]
  std::vector<float> topk_weights;    // [T, K]
  Bytes tokens;                       // [T, H]
  Bytes expert_out;                   // [C, H]; padding and tail hold NaN
  std::vector<float> expert_weights;  // [C] gradients of the weights; NaN in padding and tail

  std::vector<int32_t> token_counts;  // [local experts]
  int32_t total_recv = 0;
  Bytes recv_tokens;                // [C, H]: dispatch; combine backward of `tokens`
  std::vector<float> recv_weights;  // [C]
  Bytes combined;                   // [T, H]: combine of `expert_out`; dispatch backward of it
  std::vector<float> weight_grads;  // [T, K]: dispatch backward of `expert_weights`
};

// By rank.
std::vector<RankData> MakeExchange(const ExchangeCase& c);

}  // namespace epd::testing
