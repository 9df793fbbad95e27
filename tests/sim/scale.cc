// Forms one group over many nodes with the real control code and no network, and prints one line of
// JSON: time, messages, memory. tests/scale/run sets it beside the same over gRPC.
//   scale [RANKS_PER_NODE [RANKS]]
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "absl/time/clock.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

void Form(size_t num_ranks, size_t ranks_per_node) {
  const size_t num_nodes = num_ranks / ranks_per_node;
  const absl::Time begin = absl::Now();
  SmallCluster cluster(num_nodes);
  cluster.keep_members = false;  // A copy for each session would be most of the memory.
  GroupSpec spec = SmallSpec(static_cast<uint32_t>(num_ranks));
  uint64_t session = 0;
  for (size_t node = 0; node < num_nodes; ++node) {
    for (size_t i = 0; i < ranks_per_node; ++i) {
      const auto rank = static_cast<uint32_t>(session++);
      cluster.AttachAndJoin(node, session, spec, {rank});
    }
  }
  const bool ready = cluster.Group().state == GroupState::kReady;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"ranks\": %zu, \"nodes\": %zu, \"ready\": %s, \"form_s\": %.3f, \"reports\": %zu, "
      "\"views\": %zu, \"peak_mib\": %ld}\n",
      num_ranks, num_nodes, ready ? "true" : "false", seconds, cluster.num_reports,
      cluster.num_views, usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace epd

int main(int argc, char** argv) {
  const size_t ranks_per_node = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 8;
  if (argc > 2) {
    epd::Form(std::strtoul(argv[2], nullptr, 10), ranks_per_node);
    return 0;
  }
  for (const size_t num_ranks : {64, 256, 1024, 4096}) epd::Form(num_ranks, ranks_per_node);
  return 0;
}
