// Which form of scatter moves its rows in less time: a model of traffic, not a measurement.
#pragma once

#include <cmath>

#include "kernels/routing_spec.h"

namespace epd::cuda {

enum class ScatterForm {
  kDirect,   // push_direct.h: a copy for every route
  kLanding,  // push_landing.h, land_rows.h: a copy for every rank that a token reaches
};

// Where rows go, and what they cross.
struct ScatterPath {
  // Bandwidth of the link between two ranks over that of a rank's own memory.
  double link_over_memory = 0.13;
  // Whether peers may write the receive buffer itself. If not, direct rows take one more copy, while
  // the expansion of landings is that copy.
  bool writes_receive_buffer = false;
};

// Ranks that a token reaches on average if its K routes are spread evenly over R ranks.
inline double DistinctRanks(const RoutingSpec& spec) {
  return spec.num_ranks * (1 - std::pow(1 - 1.0 / spec.num_ranks, spec.top_k));
}

// Times are in rows over memory bandwidth, per token. What crosses a link is also written into the
// memory behind it; the slower of the two counts.
inline ScatterForm ChooseScatterForm(const RoutingSpec& spec, const ScatterPath& path) {
  const double routes = spec.top_k;
  const double landed = DistinctRanks(spec);
  const double remote = (spec.num_ranks - 1.0) / spec.num_ranks;
  const double direct = std::fmax(routes * remote / path.link_over_memory, routes) +
                        (path.writes_receive_buffer ? 0 : 2 * routes);
  const double landing =
      std::fmax(landed * remote / path.link_over_memory, landed) + landed + routes;
  return direct <= landing ? ScatterForm::kDirect : ScatterForm::kLanding;
}

}  // namespace epd::cuda
