// What prepares say about where tokens go, counted for people.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/core/allowance.h"
#include "daemon/core/group_spec.h"
#include "daemon/worker/engine/direct_outcome.h"
#include "daemon/worker/engine/effects.h"

namespace epd {

// Of one formation, since it started; all empty before the first prepare.
struct Routes {
  std::vector<uint64_t> of_expert = {};      // [num_experts]
  std::vector<uint64_t> between_ranks = {};  // [num_ranks, num_ranks], from ranks served here.
  uint64_t padded_rows = 0;                  // In zones of ranks served here.
  uint64_t num_prepares = 0;
  uint64_t num_estimated = 0;  // Of these, the ones of which only a part was read.
};

// Reads counts on the exec thread, where everybody else's calls wait meanwhile: a large group's are 63 MB a prepare. So the
// tenants of each uid have an allowance. What goes beyond is estimated: of such a prepare one slice of the experts is read, at
// random, and counts for all. Exec thread only.
class RouteCounter {
 public:
  // A count costs 1, an expert kCostOfExpert more; some 1 to 2 ns each. kBurst is what one prepare of 1,000 ranks and 1,000
  // experts costs, kPerSecond 3,600 prepares of 64 ranks and 1,024 experts.
  static constexpr uint64_t kCostOfExpert = 8;
  static constexpr uint64_t kBurst = uint64_t{1} << 20;
  static constexpr uint64_t kPerSecond = uint64_t{256} << 20;

  // Adds to `routes` what `prepare` asks for; `arenas` is its set, of a group of `spec`.
  void Count(const CountRoutes& prepare, const GroupSpec& spec, const ArenaSet& arenas,
             absl::Time now, Routes& routes);

  // Adds what a rank says of a prepare that ranks of a group of `spec` made without the worker.
  static void Count(const DirectOutcome& prepare, const GroupSpec& spec, Routes& routes);

 private:
  // Experts [begin, end), each of which stands for `weight`.
  struct Slice {
    uint32_t begin = 0;
    uint32_t end = 0;
    uint64_t weight = 1;
  };
  // Experts of a slice, counted from its begin, that one rank owns.
  struct Run {
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t owner = 0;
  };
  Slice Allow(const CountRoutes& prepare, int num_arenas, absl::Time now, const Routes& routes);
  static Slice ToldSlice(const CountRoutes& prepare);
  // The counts of the slice that `arena` has, into counts_. False: they cannot be read.
  bool ReadCounts(const CountRoutes& prepare, const Slice& slice, const ArenaSet& arenas,
                  int arena);
  void AddRow(uint64_t weight, uint64_t* to_ranks);
  void AddExperts(const CountRoutes& prepare, const Slice& slice, Routes& routes) const;

  std::map<uint32_t, Allowance> of_uid_;
  // Of the slice at hand.
  std::vector<int32_t> counts_;      // Of one rank.
  std::vector<uint64_t> here_;       // Of the ranks that this worker serves.
  std::vector<uint64_t> elsewhere_;  // Of the others.
  std::vector<Run> runs_;
};

}  // namespace epd
