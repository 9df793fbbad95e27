// How a high-throughput, expert-major library lays rows out, from what all ranks told it: every expert's
// zone in the order of its number, inside by source rank and token, each padded; an expert that a token
// names twice counts once. For the fake NCCL EP; shares nothing with epd's own layout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace epd::fake_nccl_ep {

struct Routes {
  int32_t num_tokens = 0;
  int32_t top_k = 0;
  std::vector<int32_t> experts;  // [num_tokens, top_k]; negative: none.

  int32_t At(int32_t token, int32_t k) const {
    return experts[static_cast<size_t>(token) * static_cast<size_t>(top_k) +
                   static_cast<size_t>(k)];
  }
};

struct Source {
  int rank = -1;  // -1: padding.
  int32_t token = 0;
};

struct Zones {
  std::vector<Source> slots;
  std::vector<int32_t> lengths;  // By local expert.
  std::map<std::pair<int32_t, std::pair<int, int32_t>>, int32_t>
      slot_of;  // (expert, (rank, token))
};

inline Zones LayOut(const std::vector<Routes>& all, int rank, int32_t num_experts,
                    size_t alignment) {
  Zones zones;
  const int32_t locals = num_experts / static_cast<int32_t>(all.size());
  for (int32_t e = rank * locals; e < (rank + 1) * locals; ++e) {
    const size_t begin = zones.slots.size();
    for (size_t source = 0; source < all.size(); ++source) {
      const Routes& routes = all[source];
      for (int32_t t = 0; t < routes.num_tokens; ++t) {
        bool named = false;
        for (int32_t k = 0; k < routes.top_k; ++k) named = named || routes.At(t, k) == e;
        if (!named) continue;
        zones.slot_of[{e, {static_cast<int>(source), t}}] =
            static_cast<int32_t>(zones.slots.size());
        zones.slots.push_back({static_cast<int>(source), t});
      }
    }
    const size_t rows = zones.slots.size() - begin;
    const size_t padded = (rows + alignment - 1) / alignment * alignment;
    zones.slots.resize(begin + padded);
    zones.lengths.push_back(static_cast<int32_t>(padded));
  }
  return zones;
}

}  // namespace epd::fake_nccl_ep
