// The loop over columns that all SIMD levels share. Each level's source includes it once.
//
// Everything here has internal linkage on purpose: the including sources are compiled for
// different machines, and one inline function shared by the linker could be the one that this
// machine cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace epd {
namespace {

// A lane type L handles L::kElements at a time:
//   Sum L::Load(const uint8_t*)      elements as fp32
//   Sum L::Add(Sum, Sum)
//   void L::Store(uint8_t*, Sum)     NaN made canonical, rounded to nearest even
// The sums of L::kUnroll lanes stay in registers while the rows' columns go by.
template <typename L>
void ReduceLoop(const std::uint8_t* const* rows, std::int32_t num_rows, std::uint8_t* out,
                std::size_t num_elements) {
  constexpr std::size_t kLaneBytes = L::kElements * L::kElementBytes;
  constexpr std::size_t kBlockBytes = kLaneBytes * L::kUnroll;
  const std::size_t total = num_elements * L::kElementBytes;
  std::size_t at = 0;
  for (; at + kBlockBytes <= total; at += kBlockBytes) {
    typename L::Sum sums[L::kUnroll];
    for (int u = 0; u < L::kUnroll; ++u) sums[u] = L::Load(rows[0] + at + u * kLaneBytes);
    for (std::int32_t r = 1; r < num_rows; ++r) {
      const std::uint8_t* row = rows[r] + at;
      for (int u = 0; u < L::kUnroll; ++u) {
        sums[u] = L::Add(sums[u], L::Load(row + u * kLaneBytes));
      }
    }
    for (int u = 0; u < L::kUnroll; ++u) L::Store(out + at + u * kLaneBytes, sums[u]);
  }
  // Whole lanes, and at the end a part of one through a buffer.
  for (; at < total; at += kLaneBytes) {
    const std::size_t bytes = total - at < kLaneBytes ? total - at : kLaneBytes;
    std::uint8_t lane[kLaneBytes] = {};
    std::memcpy(lane, rows[0] + at, bytes);
    typename L::Sum sum = L::Load(lane);
    for (std::int32_t r = 1; r < num_rows; ++r) {
      std::memcpy(lane, rows[r] + at, bytes);
      sum = L::Add(sum, L::Load(lane));
    }
    L::Store(lane, sum);
    std::memcpy(out + at, lane, bytes);
  }
}

}  // namespace
}  // namespace epd
