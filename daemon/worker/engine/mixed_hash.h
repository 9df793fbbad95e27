// A hash that is the same on every node and in every release.
#pragma once

#include <cstdint>

namespace epd {

// The last step of splitmix64: every bit of `word` changes half of the result's.
inline uint64_t Mixed(uint64_t hash, uint64_t word) {
  uint64_t x = (hash ^ word) + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace epd
