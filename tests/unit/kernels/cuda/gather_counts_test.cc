// Goal: each rank's row of counts comes to its place in every table, for any number of ranks, experts and tables, grid and order
// of threads, and nothing else is written.
#include "kernels/cuda/gather_counts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

using Counts = std::vector<std::int32_t>;

TEST(GatherCountsTest, EachRowStandsInItsPlaceOfEveryTable) {
  constexpr std::int32_t kUntouched = -7;
  for (const std::int32_t experts : {1, 7, 256, 257, 1000}) {
    for (const std::int32_t ranks : {1, 2, 8, 33}) {
      Random random(static_cast<std::uint64_t>(experts * ranks));
      Counts want;
      std::vector<Counts> rows(static_cast<std::size_t>(ranks));
      for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::int32_t e = 0; e < experts; ++e) {
          rows[r].push_back(static_cast<std::int32_t>(Uniform(random, 0, INT32_MAX)));
        }
        // The last one is not among those that are asked for.
        const bool asked = r + 1 < rows.size();
        const Counts untouched(rows[r].size(), kUntouched);
        const Counts& row = asked ? rows[r] : untouched;
        want.insert(want.end(), row.begin(), row.end());
      }
      want.push_back(kUntouched);
      std::vector<Counts> tables(3, Counts(want.size(), kUntouched));
      std::int32_t* const outs[] = {tables[0].data(), tables[1].data(), tables[2].data()};
      std::vector<GatherCounts::Args> all;
      for (std::int32_t r = 0; r + 1 < ranks; ++r) {
        all.push_back({.from = rows[static_cast<std::size_t>(r)].data(),
                       .outs = outs,
                       .num_outs = 3,
                       .num_experts = experts,
                       .at = std::int64_t{r} * experts});
      }
      const Device device = RandomDevice(random);
      Execute(GatherCountsLaunches(ForEach(all), device.shape), device);
      EXPECT_EQ(tables, std::vector<Counts>(3, want)) << experts << " experts, " << ranks;
    }
  }
}

}  // namespace
}  // namespace epd::cuda
