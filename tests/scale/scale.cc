// Forms one group over many simulated epds and prints one line of JSON: see run.
//   scale HOST:PORT SECRET NUM_NODES RANKS_PER_NODE
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "tests/scale/simulated_nodes.h"

namespace epd::scale {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

int Run(const SimulatedNodes::Options& options) {
  SimulatedNodes nodes(options);
  const absl::Time begin = absl::Now();
  absl::Status status = nodes.Connect(kPatience);
  const absl::Time connected = absl::Now();
  nodes.TakeTraffic();
  const size_t num_ranks = options.num_nodes * options.ranks_per_node;
  if (status.ok()) status = nodes.Form("scale", static_cast<uint32_t>(num_ranks), kPatience);
  const absl::Time formed = absl::Now();
  const Traffic traffic = nodes.TakeTraffic();
  if (!status.ok()) {
    std::fprintf(stderr, "scale: %s\n", status.ToString().c_str());
    return 1;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"ranks\": %zu, \"nodes\": %zu, \"connect_s\": %.3f, \"form_s\": %.3f, \"reports\": %zu, "
      "\"views\": %zu, \"report_bytes\": %zu, \"view_bytes\": %zu, \"most_messages_of_a_node\": "
      "%zu, \"nodes_rss_mib\": %ld}\n",
      num_ranks, options.num_nodes, absl::ToDoubleSeconds(connected - begin),
      absl::ToDoubleSeconds(formed - connected), traffic.reports, traffic.views,
      traffic.report_bytes, traffic.view_bytes, traffic.most_of_a_node, usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace epd::scale

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: scale HOST:PORT SECRET NUM_NODES RANKS_PER_NODE\n");
    return 2;
  }
  return epd::scale::Run({.coordinator = argv[1],
                          .secret = argv[2],
                          .num_nodes = std::strtoul(argv[3], nullptr, 10),
                          .ranks_per_node = std::strtoul(argv[4], nullptr, 10)});
}
