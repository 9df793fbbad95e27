// Random and particular exchanges for the kernel tests. Every generator takes the test's engine, so
// a printed seed repeats a failure.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/unit/kernels/reference.h"

namespace epd {

using Random = std::mt19937_64;

inline std::int64_t Uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

enum class Routing { kUniform, kAllToOne, kHalfEmpty, kNone, kSparse };

inline std::int64_t PickExpert(Random& random, Routing routing, int num_experts) {
  switch (routing) {
    case Routing::kAllToOne:
      return num_experts / 2;
    case Routing::kHalfEmpty:
      return Uniform(random, 0, (num_experts - 1) / 2);
    case Routing::kNone:
      return -Uniform(random, 1, 3);
    case Routing::kSparse:
      return Uniform(random, 0, 3) == 0 ? Uniform(random, 0, num_experts - 1) : -1;
    case Routing::kUniform:
      break;
  }
  return Uniform(random, 0, num_experts - 1);
}

// Sizes small enough for the reference; all the odd cases come up: no tokens on some ranks, ranks
// with no experts, E not divisible by R, tables that are not contiguous, an expert named twice.
inline reference::Problem RandomProblem(Random& random, Routing routing) {
  reference::Problem problem;
  problem.num_ranks = static_cast<int>(Uniform(random, 1, 6));
  problem.num_experts = static_cast<int>(Uniform(random, 1, 17));
  problem.top_k = static_cast<int>(Uniform(random, 1, 16));
  problem.alignment = Uniform(random, 0, 3) == 0 ? 0 : 1 << Uniform(random, 0, 7);
  problem.max_tokens = Uniform(random, 0, 24);
  problem.use_table = Uniform(random, 0, 1) == 1;
  problem.owner = reference::ContiguousOwners(problem.num_ranks, problem.num_experts);
  if (problem.use_table) {
    for (std::int32_t& owner : problem.owner) {
      owner = static_cast<std::int32_t>(Uniform(random, 0, problem.num_ranks - 1));
    }
  }
  problem.topk.resize(problem.num_ranks);
  for (std::vector<std::int64_t>& topk : problem.topk) {
    const std::int64_t tokens =
        Uniform(random, 0, 4) == 0 ? 0 : Uniform(random, 0, problem.max_tokens);
    topk.resize(tokens * problem.top_k);
    for (std::int64_t& expert : topk) {
      expert = PickExpert(random, routing, problem.num_experts);
    }
  }
  return problem;
}

inline constexpr Routing kAllRoutings[] = {Routing::kUniform, Routing::kAllToOne,
                                           Routing::kHalfEmpty, Routing::kNone, Routing::kSparse};

inline std::string Describe(const reference::Problem& problem, std::uint64_t seed) {
  return "seed=" + std::to_string(seed) + " R=" + std::to_string(problem.num_ranks) +
         " E=" + std::to_string(problem.num_experts) + " K=" + std::to_string(problem.top_k) +
         " a=" + std::to_string(problem.alignment) +
         " T_max=" + std::to_string(problem.max_tokens) +
         " table=" + std::to_string(problem.use_table);
}

inline reference::Bytes RandomBytes(Random& random, std::size_t bytes) {
  reference::Bytes out(bytes);
  for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random());
  return out;
}

inline std::vector<float> RandomFloats(Random& random, std::size_t count) {
  std::vector<float> out(count);
  for (float& value : out) value = std::uniform_real_distribution<float>(-2, 2)(random);
  return out;
}

// Rows of floating elements: ordinary values, and in one element of eight any bit pattern, which
// brings NaN, infinities, denormals and both zeros.
inline reference::Bytes RandomRows(Random& random, std::size_t bytes, DataType dtype) {
  reference::Bytes out = RandomBytes(random, bytes);
  for (std::size_t i = 0; i < bytes / DataTypeBytes(dtype); ++i) {
    if (Uniform(random, 0, 7) == 0) continue;
    reference::SetElement(out.data(), i, dtype,
                          std::uniform_real_distribution<float>(-8, 8)(random));
  }
  return out;
}

}  // namespace epd
