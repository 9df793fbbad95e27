#include "tests/integration/client_c/harness/exchange_cases.h"

namespace epd::testing {

std::vector<ExchangeCase> ExchangeCases() {
  std::vector<ExchangeCase> cases;
  for (const epd_dtype dtype : {EPD_DTYPE_FLOAT32, EPD_DTYPE_BFLOAT16, EPD_DTYPE_FLOAT16}) {
    cases.push_back({.num_ranks = 2, .dtype = dtype, .seed = 11});
    cases.push_back({.num_ranks = 4,
                     .num_experts = 8,
                     .top_k = 4,
                     .hidden = 129,
                     .alignment = 16,
                     .dtype = dtype,
                     .routing = Routing::kSomeMissing,
                     .wide_indices = true,
                     .seed = 12});
  }
  cases.push_back({.num_ranks = 1, .num_experts = 3, .top_k = 1, .hidden = 1});
  cases.push_back({.num_ranks = 3,
                   .num_experts = 5,
                   .num_tokens = {0, 300, 7},
                   .expert_owner = {2, 0, 2, 0, 2}});
  cases.push_back({.num_ranks = 2, .routing = Routing::kNone});
  cases.push_back({.num_ranks = 2, .num_tokens = {0, 0}});
  cases.push_back({.num_ranks = 4, .num_experts = 8, .hidden = 64, .routing = Routing::kOneExpert});
  cases.push_back({.num_ranks = 4,
                   .num_experts = 4,
                   .capacity = 9,
                   .routing = Routing::kOneExpert,
                   .drop = true});
  cases.push_back({.num_ranks = 4,
                   .num_experts = 4,
                   .top_k = 2,
                   .hidden = 2048,
                   .dtype = EPD_DTYPE_BFLOAT16,
                   .num_tokens = {512, 512, 512, 512},
                   .seed = 13});
  cases.push_back({.num_ranks = 4,
                   .num_experts = 8,
                   .top_k = 4,
                   .hidden = 129,
                   .alignment = 16,
                   .dtype = EPD_DTYPE_BFLOAT16,
                   .routing = Routing::kSomeMissing,
                   .arrays = {1, 100, 28}});
  cases.push_back({.num_ranks = 2, .hidden = 64, .num_tokens = {0, 300}, .arrays = {60, 4}});
  return cases;
}

std::vector<ExchangeCase> ExpertTableCases() {
  return {
      // 7 experts on 3 ranks, in no order.
      {.num_ranks = 3,
       .num_experts = 7,
       .top_k = 3,
       .hidden = 3,
       .alignment = 4,
       .expert_owner = {2, 0, 2, 1, 0, 2, 2}},
      // Ranks 0 and 2 have no experts, ranks 1 and 3 no tokens.
      {.num_ranks = 4,
       .num_experts = 5,
       .top_k = 2,
       .hidden = 127,
       .dtype = EPD_DTYPE_BFLOAT16,
       .num_tokens = {5, 0, 9, 0},
       .expert_owner = {3, 3, 1, 3, 1}},
      // All experts on one rank, which has no tokens.
      {.num_ranks = 3,
       .num_experts = 4,
       .top_k = 1,
       .hidden = 1023,
       .num_tokens = {6, 7, 0},
       .expert_owner = {2, 2, 2, 2}},
      // Every other expert, 16 routes a token, more than there are experts.
      {.num_ranks = 2,
       .num_experts = 6,
       .top_k = 16,
       .hidden = 5,
       .alignment = 8,
       .dtype = EPD_DTYPE_FLOAT16,
       .routing = Routing::kSomeMissing,
       .expert_owner = {0, 1, 0, 1, 0, 1}},
      // 8 ranks: uneven, backwards, one without experts, two without tokens.
      {.num_ranks = 8,
       .num_experts = 13,
       .top_k = 7,
       .hidden = 33,
       .routing = Routing::kSomeMissing,
       .num_tokens = {0, 3, 11, 1, 0, 8, 2, 5},
       .expert_owner = {7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 7, 7, 1}},
      {.num_ranks = 8, .num_experts = 8, .top_k = 8, .hidden = 1, .dtype = EPD_DTYPE_BFLOAT16},
      // Rows are dropped at two ranks, at the third there is room for all.
      {.num_ranks = 3,
       .num_experts = 5,
       .top_k = 2,
       .hidden = 9,
       .capacity = 12,
       .drop = true,
       .expert_owner = {0, 1, 1, 0, 2}},
      // The largest rows, and an odd size just below; a table of one rank.
      {.num_ranks = 2,
       .num_experts = 3,
       .top_k = 5,
       .hidden = 8192,
       .dtype = EPD_DTYPE_BFLOAT16,
       .expert_owner = {1, 0, 1}},
      {.num_ranks = 3, .num_experts = 4, .top_k = 1, .hidden = 8191, .expert_owner = {1, 2, 0, 1}},
      {.num_ranks = 1, .num_experts = 3, .top_k = 16, .hidden = 2, .expert_owner = {0, 0, 0}},
  };
}

std::vector<ExchangeCase> CasesOfNodes(uint32_t num_ranks) {
  std::vector<uint32_t> some_tokens = {0, 300, 7, 1, 0, 64, 65, 2};
  some_tokens.resize(num_ranks);
  const uint32_t last = num_ranks - 1;
  return {
      {.num_ranks = num_ranks,
       .num_experts = 2 * num_ranks,
       .top_k = 4,
       .hidden = 129,
       .alignment = 16,
       .routing = Routing::kSomeMissing,
       .wide_indices = true,
       .seed = 12},
      {.num_ranks = num_ranks,
       .num_experts = 8,
       .dtype = EPD_DTYPE_BFLOAT16,
       .num_tokens = some_tokens,
       .expert_owner = {2, 0, last, 0, 2, 5, 5, 1}},
      {.num_ranks = num_ranks, .num_experts = num_ranks, .routing = Routing::kNone},
      {.num_ranks = num_ranks,
       .num_experts = num_ranks,
       .capacity = 9,
       .routing = Routing::kOneExpert,
       .drop = true},
      {.num_ranks = num_ranks,
       .num_experts = num_ranks,
       .top_k = 4,
       .hidden = 512,
       .dtype = EPD_DTYPE_FLOAT16,
       .num_tokens = std::vector<uint32_t>(num_ranks, 96),
       .seed = 13},
      {.num_ranks = num_ranks,
       .num_experts = 2 * num_ranks,
       .hidden = 40,
       .num_tokens = some_tokens,
       .arrays = {32, 8}},
  };
}

}  // namespace epd::testing
