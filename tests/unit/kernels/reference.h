// The routing and both row movements once more, slow and plain: what the kernels are held to.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/data_type.h"
#include "kernels/routing_spec.h"

namespace epd::reference {

using Bytes = std::vector<std::uint8_t>;

// One exchange: sizes, owners, and every rank's topk_idx.
struct Problem {
  int num_ranks = 1;
  int num_experts = 1;
  int top_k = 1;
  int alignment = 0;
  std::int64_t max_tokens = 0;
  bool use_table = false;
  std::vector<std::int32_t> owner;              // [E]
  std::vector<std::vector<std::int64_t>> topk;  // [R][T_r * K]

  std::int64_t NumTokens(int rank) const {
    return static_cast<std::int64_t>(topk[rank].size()) / top_k;
  }

  RoutingSpec Spec() const {
    RoutingSpec spec;
    spec.num_ranks = num_ranks;
    spec.num_experts = num_experts;
    spec.top_k = top_k;
    spec.alignment = alignment;
    spec.max_tokens = max_tokens;
    spec.expert_owner = use_table ? owner.data() : nullptr;
    return spec;
  }
};

// Contiguous blocks, counted out rank by rank.
inline std::vector<std::int32_t> ContiguousOwners(int num_ranks, int num_experts) {
  std::vector<std::int32_t> owner(num_experts);
  for (int r = 0; r < num_ranks; ++r) {
    for (int e = r * num_experts / num_ranks; e < (r + 1) * num_experts / num_ranks; ++e) {
      owner[e] = r;
    }
  }
  return owner;
}

// What stands in one slot of a receive buffer; source -1 is padding.
struct Slot {
  int source = -1;
  std::int64_t token = 0;
  int k = 0;
};

struct RecvBuffer {
  std::vector<Slot> slots;         // all zones, before any drop
  std::vector<std::int32_t> zone;  // padded length per local expert
};

inline RecvBuffer Recv(const Problem& problem, int rank) {
  RecvBuffer recv;
  const std::size_t alignment = problem.alignment == 0 ? 1 : problem.alignment;
  for (int e = 0; e < problem.num_experts; ++e) {
    if (problem.owner[e] != rank) continue;
    const std::size_t begin = recv.slots.size();
    for (int s = 0; s < problem.num_ranks; ++s) {
      for (std::size_t i = 0; i < problem.topk[s].size(); ++i) {
        if (problem.topk[s][i] != e) continue;
        recv.slots.push_back(
            {s, static_cast<std::int64_t>(i) / problem.top_k, static_cast<int>(i % problem.top_k)});
      }
    }
    while (recv.slots.size() % alignment != 0) recv.slots.push_back({});
    recv.zone.push_back(static_cast<std::int32_t>(recv.slots.size() - begin));
  }
  return recv;
}

// Where a route ended up: rank -1 for no route.
struct Place {
  int rank = -1;
  std::int64_t slot = 0;
};

inline std::vector<Place> Places(const Problem& problem, int source) {
  std::vector<Place> places(problem.topk[source].size());
  for (int r = 0; r < problem.num_ranks; ++r) {
    const RecvBuffer recv = Recv(problem, r);
    for (std::size_t i = 0; i < recv.slots.size(); ++i) {
      const Slot& slot = recv.slots[i];
      if (slot.source != source) continue;
      places[slot.token * problem.top_k + slot.k] = {r, static_cast<std::int64_t>(i)};
    }
  }
  return places;
}

struct ScatterResult {
  Bytes rows;                  // [C, row_bytes]
  std::vector<float> weights;  // [C]
};

inline ScatterResult Scatter(const Problem& problem, int rank, const std::vector<Bytes>& rows,
                             const std::vector<std::vector<float>>& weights, std::size_t row_bytes,
                             std::int64_t capacity) {
  ScatterResult out{Bytes(capacity * row_bytes, 0), std::vector<float>(capacity, 0.0f)};
  const RecvBuffer recv = Recv(problem, rank);
  for (std::int64_t i = 0; i < capacity && i < static_cast<std::int64_t>(recv.slots.size()); ++i) {
    const Slot& slot = recv.slots[i];
    if (slot.source < 0) continue;
    std::memcpy(out.rows.data() + i * row_bytes, rows[slot.source].data() + slot.token * row_bytes,
                row_bytes);
    out.weights[i] = weights[slot.source][slot.token * problem.top_k + slot.k];
  }
  return out;
}

// The value of a 16-bit pattern without its sign, by its definition; NaN patterns excluded.
// `exponent_bits` is 5 for float16 and 8 for bfloat16. Infinity reads as the next power of two,
// which is where rounding to it begins half-way.
inline double Magnitude16(int bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// Nearest pattern, ties to even, found by searching all of them.
inline std::uint16_t RoundTo16(float value, int exponent_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (14 - exponent_bits)));
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  int low = 0;  // the largest pattern whose magnitude is at most the value's
  for (int step = 1 << 14; step > 0; step /= 2) {
    if (low + step <= infinity && Magnitude16(low + step, exponent_bits) <= magnitude) low += step;
  }
  if (low < infinity) {
    const double below = magnitude - Magnitude16(low, exponent_bits);
    const double above = Magnitude16(low + 1, exponent_bits) - magnitude;
    if (above < below || (above == below && low % 2 == 1)) ++low;
  }
  return static_cast<std::uint16_t>(sign | low);
}

inline float Widen16(std::uint16_t bits, int exponent_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  const int magnitude = bits & 0x7fff;
  if (magnitude > infinity) return std::nanf("");
  const double value = magnitude == infinity ? HUGE_VAL : Magnitude16(magnitude, exponent_bits);
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

// One element of a row as fp32.
inline float Element(const std::uint8_t* row, std::size_t i, DataType dtype) {
  if (dtype == DataType::kFloat32) {
    float value;
    std::memcpy(&value, row + i * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, row + i * 2, 2);
  return Widen16(bits, dtype == DataType::kFloat16 ? 5 : 8);
}

inline void SetElement(std::uint8_t* row, std::size_t i, DataType dtype, float value) {
  if (dtype == DataType::kFloat32) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) bits = 0x7fc00000;
    std::memcpy(row + i * 4, &bits, 4);
    return;
  }
  const std::uint16_t bits = RoundTo16(value, dtype == DataType::kFloat16 ? 5 : 8);
  std::memcpy(row + i * 2, &bits, 2);
}

// Sum of rows in order; one row keeps its bits.
inline Bytes SumRows(const std::vector<const std::uint8_t*>& rows, std::size_t row_bytes,
                     DataType dtype) {
  Bytes out(row_bytes, 0);
  if (rows.size() == 1) std::memcpy(out.data(), rows[0], row_bytes);
  if (rows.size() < 2) return out;
  for (std::size_t i = 0; i < row_bytes / DataTypeBytes(dtype); ++i) {
    float sum = Element(rows[0], i, dtype);
    for (std::size_t r = 1; r < rows.size(); ++r) sum += Element(rows[r], i, dtype);
    SetElement(out.data(), i, dtype, sum);
  }
  return out;
}

struct GatherResult {
  Bytes rows;                  // [T, row_bytes]
  std::vector<float> weights;  // [T, K]
};

inline GatherResult Gather(const Problem& problem, int rank, const std::vector<Bytes>& expert_rows,
                           const std::vector<std::vector<float>>& weights, std::size_t row_bytes,
                           DataType dtype) {
  GatherResult out;
  const std::vector<Place> places = Places(problem, rank);
  out.weights.assign(places.size(), 0.0f);
  for (std::int64_t t = 0; t < problem.NumTokens(rank); ++t) {
    std::vector<const std::uint8_t*> rows;
    for (int k = 0; k < problem.top_k; ++k) {
      const Place& place = places[t * problem.top_k + k];
      if (place.rank < 0) continue;
      const auto capacity = static_cast<std::int64_t>(weights[place.rank].size());
      if (place.slot >= capacity) continue;
      rows.push_back(expert_rows[place.rank].data() + place.slot * row_bytes);
      out.weights[t * problem.top_k + k] = weights[place.rank][place.slot];
    }
    const Bytes sum = SumRows(rows, row_bytes, dtype);
    out.rows.insert(out.rows.end(), sum.begin(), sum.end());
  }
  return out;
}

}  // namespace epd::reference
