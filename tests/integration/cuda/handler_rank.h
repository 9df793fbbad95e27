// One process of a JAX job on the fake driver, without JAX: it joins as the Python package does, and calls the
// handlers of the CUDA platform as XLA does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"
#include "tests/integration/client_c/harness/exchange_case.h"
#include "tests/integration/cuda/device_bytes.h"
#include "tests/unit/client/jax/five_sites.h"

namespace epd::testing {

// One per process, which is to have opened the fake driver before. Not thread-safe. Experts are in blocks, rows are
// float32, and every rank has as many tokens as the group allows.
class HandlerRank {
 public:
  // Joins, collectively, as one of `device`, and loads the executable. `problem` is the first error's text.
  HandlerRank(const std::string& socket, const ExchangeCase& c, uint32_t rank, int device = 0);
  // Leaves.
  ~HandlerRank();
  std::string problem;

  // Where its calls stand in their program.
  static constexpr const char* kScope = "layer_3";

  // All five operations, `num_executions` times, waiting only for the last; the first difference from `data` in words, or
  // the first error's text.
  std::string Step(const RankData& data, int num_executions = 1);

 private:
  std::string Join(const std::string& socket);
  std::string OpenStream();
  std::string Await() const;
  std::string Compare(const RankData& data) const;

  const ExchangeCase case_;
  const uint32_t rank_;
  const int device_;
  const int64_t num_tokens_;
  cuda::Stream stream_ = nullptr;
  DeviceBytes topk_, tokens_, weights_, expert_out_, expert_weights_;
  DeviceBytes counts_, total_, plan_, recv_, recv_weights_, combined_, grad_tokens_, grad_weights_;
  DeviceBytes grad_expert_;
  std::vector<std::unique_ptr<jax::FakeSite>> sites_;
};

}  // namespace epd::testing
