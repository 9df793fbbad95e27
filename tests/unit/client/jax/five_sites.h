// The five operations as an executable of XLA's has them: a call site each, over fixed buffers of floats.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/client/jax/call_frame.h"

namespace epd::jax {

struct SiteSizes {
  int64_t ranks = 0;
  int64_t experts = 0;
  int64_t local_experts = 0;
  int64_t max_tokens = 0;
  int64_t top_k = 0;      // K
  int64_t alignment = 1;  // Slots.
  int64_t hidden = 0;     // H
  int64_t tokens = 0;     // T
  int64_t capacity = 0;   // C
  int64_t plan_bytes = 0;
  const char* scope = "";  // Where the calls stand in their program.
  int runtime = 0;         // Of FakeSite::kNumRuntimes.
};

// Memory of a device.
struct SiteBuffers {
  int32_t* topk = nullptr;          // [T, K]
  float* tokens = nullptr;          // [T, H] of dispatch
  float* weights = nullptr;         // [T, K]
  float* expert_out = nullptr;      // [C, H] of combine and dispatch backward
  float* expert_weights = nullptr;  // [C]
  float* cotangents = nullptr;      // [T, H] of combine backward

  int32_t* counts = nullptr;      // [local_experts]
  int32_t* total = nullptr;       // [1]
  uint8_t* plan = nullptr;        // [plan_bytes]
  float* recv = nullptr;          // [C, H] of dispatch
  float* recv_weights = nullptr;  // [C]
  float* combined = nullptr;      // [T, H] of combine
  float* grad_tokens = nullptr;   // [T, H] of dispatch backward
  float* grad_weights = nullptr;  // [T, K]
  float* grad_expert = nullptr;   // [C, H] of combine backward
};

// prepare, dispatch, combine, dispatch backward, combine backward, on the CUDA platform.
std::vector<std::unique_ptr<FakeSite>> FiveSites(const SiteSizes& sizes,
                                                 const SiteBuffers& buffers);

// Instantiates and initialises all, as one compilation. The first that fails.
Outcome Load(std::vector<std::unique_ptr<FakeSite>>& sites, int device);

// Puts all into the stream. The first that fails.
Outcome Execute(std::vector<std::unique_ptr<FakeSite>>& sites, int device, void* stream);

}  // namespace epd::jax
