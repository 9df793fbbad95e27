// The checksum in a plan's header: for the kernels' own sources and their tests.
//
// A sum, modulo 2^64, of one mixed value per 8-byte word. Addition commutes, so the threads of a GPU
// may each take some words in any order and get what one CPU thread gets. The mix is a bijection for
// each position, so a change of any one word changes the sum, and the position goes in, so words
// that change places do too. It guards against damage, not against somebody who makes a plan up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"
#include "kernels/routing_plan.h"

namespace epd {

// Words of a used part of `used_bytes`, a multiple of 4; the last one may be half zeros.
EPD_HOST_DEVICE constexpr std::int64_t PlanChecksumWords(std::size_t used_bytes) {
  return static_cast<std::int64_t>((used_bytes + 7) / 8);
}

EPD_HOST_DEVICE constexpr std::uint64_t MixPlanWord(std::uint64_t word, std::int64_t position) {
  word ^= (static_cast<std::uint64_t>(position) + 1) * 0x9e3779b97f4a7c15;
  word *= 0xff51afd7ed558ccd;
  word ^= word >> 32;
  word *= 0xc4ceb9fe1a85ec53;
  return word ^ (word >> 29);
}

// Sum over the words at first, first + step, ... of a plan, aligned to 8 bytes; the checksum's own
// word counts as nothing.
EPD_HOST_DEVICE inline std::uint64_t SumPlanWords(const void* plan, std::size_t used_bytes,
                                                  std::int64_t first, std::int64_t step) {
  constexpr std::int64_t kOwnWord = offsetof(PlanHeader, checksum) / 8;
  const auto* bytes = static_cast<const std::uint8_t*>(plan);
  const std::int64_t whole = static_cast<std::int64_t>(used_bytes / 8);
  std::uint64_t sum = 0;
  for (std::int64_t i = first; i < PlanChecksumWords(used_bytes); i += step) {
    if (i == kOwnWord) continue;
    std::uint64_t word = 0;
    std::uint32_t half = 0;
    if (i < whole) {
      std::memcpy(&word, bytes + i * 8, 8);
    } else {
      std::memcpy(&half, bytes + i * 8, 4);
      word = half;
    }
    sum += MixPlanWord(word, i);
  }
  return sum;
}

// The length goes in last: zeros at the end count too.
EPD_HOST_DEVICE constexpr std::uint64_t SealPlanSum(std::uint64_t sum, std::size_t used_bytes) {
  return MixPlanWord(sum, static_cast<std::int64_t>(used_bytes));
}

// Of `used_bytes` (>= sizeof(PlanHeader), a multiple of 4) from `plan`, leaving out
// PlanHeader::checksum.
inline std::uint64_t PlanChecksum(const void* plan, std::size_t used_bytes) {
  return SealPlanSum(SumPlanWords(plan, used_bytes, 0, 1), used_bytes);
}

}  // namespace epd
