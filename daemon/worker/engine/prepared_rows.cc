#include "daemon/worker/engine/prepared_rows.h"

#include <cstddef>

namespace epd {

std::map<Incarnation, std::vector<uint32_t>> TokensFrom(const TenantPeers& peers,
                                                        const PreparedWorkers& prepared) {
  const size_t num_ranks = peers.node_of_rank.size();
  std::map<Incarnation, std::vector<uint32_t>> tokens;
  std::map<Incarnation, size_t> said;  // Of each worker, in the order of its ranks.
  std::vector<std::vector<uint32_t>*> of_rank;
  for (const Incarnation worker : peers.node_of_rank) of_rank.push_back(&tokens[worker]);
  for (const Incarnation worker : peers.node_of_rank) {
    const auto found = prepared.find(worker);
    const size_t first = said[worker];
    said[worker] += num_ranks;
    if (found == prepared.end() || found->second.tokens_to.size() < said[worker]) return {};
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      of_rank[rank]->push_back(found->second.tokens_to[first + rank]);
    }
  }
  for (const auto& [worker, rows] : prepared) {
    if (rows.tokens_to.size() != said[worker]) return {};
  }
  return tokens;
}

}  // namespace epd
