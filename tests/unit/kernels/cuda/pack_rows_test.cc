// Goal: rows and weights of any runs of slots stand in their messages one behind the other, for every row size, grid and
// order of threads, and nothing else is written.
#include "kernels/cuda/pack_rows.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

// Runs of a stage, each behind a gap, in messages with gaps between them; and what must come of it.
struct Packing {
  Packing(Random& random, std::uint64_t row_bytes, bool has_weights)
      : stage(RandomBytes(random, kSlots * static_cast<std::int64_t>(row_bytes))),
        weights(RandomFloats(random, kSlots)),
        messages(kMessageBytes),
        want(messages.Copy()) {
    std::copy(stage.begin(), stage.end(), rows.data());
    std::int64_t slot = Uniform(random, 0, 3);
    std::uint64_t at = 0;
    while (slot < kSlots) {
      const std::int64_t num_rows = std::min<std::int64_t>(Uniform(random, 1, 6), kSlots - slot);
      const auto bytes = static_cast<std::uint64_t>(num_rows) * row_bytes;
      const std::uint64_t weights_at = at + (bytes + 63) / 64 * 64;
      runs.push_back({args.num_rows, slot, at, weights_at});
      std::memcpy(want.data() + at, &stage[static_cast<std::uint64_t>(slot) * row_bytes], bytes);
      if (has_weights) std::memcpy(want.data() + weights_at, &weights[slot], num_rows * 4);
      args.num_rows += num_rows;
      at = weights_at + 64;
      slot += num_rows + Uniform(random, 0, 4);
    }
    EXPECT_LE(at, kMessageBytes);
    args.runs = runs.data();
    args.num_runs = static_cast<std::int64_t>(runs.size());
    args.rows = rows.data();
    args.weights = has_weights ? weights.data() : nullptr;
    args.messages = messages.data();
    args.row_bytes = row_bytes;
  }
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  static constexpr std::int64_t kSlots = 40;
  static constexpr std::size_t kMessageBytes = 256 << 10;

  reference::Bytes stage;
  std::vector<float> weights;
  Region messages;
  reference::Bytes want;
  Region rows{kSlots * 4200};
  std::vector<PackRun> runs;
  PackRowsArgs args;
};

TEST(PackRowsTest, RunsStandInTheirMessagesOneBehindTheOther) {
  constexpr std::uint64_t kRowBytes[] = {1, 2, 6, 12, 16, 30, 64, 130, 1028, 4112};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::uint64_t row_bytes = kRowBytes[seed % std::size(kRowBytes)];
    Packing packing(random, row_bytes, Uniform(random, 0, 1) == 1);
    const Device device = RandomDevice(random);
    Execute(PackRowsLaunches(ForOne(packing.args), device.shape), device);
    ASSERT_EQ(packing.messages.Copy(), packing.want) << "seed " << seed << " row " << row_bytes;
  }
}

// Stages of several ranks, of which one packs nothing, in one launch.
TEST(PackRowsTest, EachRankPacksIntoItsOwnMessages) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    Packing first(random, 48, true);
    Packing second(random, 48, false);
    PackRowsArgs none = first.args;
    none.num_rows = 0;
    std::vector<PackRowsArgs> all = {first.args, none, second.args};
    const Device device = RandomDevice(random);
    const LaunchList list = PackRowsLaunches(ForEach(all), device.shape);
    EXPECT_EQ(list.size(), 1);
    Execute(list, device);
    ASSERT_EQ(first.messages.Copy(), first.want) << "seed " << seed;
    ASSERT_EQ(second.messages.Copy(), second.want) << "seed " << seed;
  }
}

TEST(PackRowsTest, NoRowsAreNoLaunch) {
  PackRowsArgs pack = {.row_bytes = 16};
  FindPacked::Args find;
  EXPECT_EQ(PackRowsLaunches(ForOne(pack), {}).size(), 0);
  EXPECT_EQ(FindPackedLaunches(ForOne(find), {}).size(), 0);
  EXPECT_EQ(PackRowsLaunches({}, {}).size(), 0);
}

TEST(FindPackedTest, RoutesThatLeadNowhereStayAsTheyAre) {
  const FindPacked::Source sources[] = {{0, 1}, {}};
  const PackedRun run = {.slot = 4, .num_rows = 2, .row = 7};
  const std::vector<PlanRoute> from = {{-1, 0}, {2, 4}, {-7, 4}, {0, -4}, {1, 4},
                                       {0, 3},  {0, 4}, {0, 5},  {0, 6},  {0, 0x7fffffff}};
  std::vector<PlanRoute> table = from;
  FindPacked::Args args = {table.data(), static_cast<std::int64_t>(table.size()), 2, sources, &run};
  Execute(FindPackedLaunches(ForOne(args), {}), {});
  std::vector<std::int32_t> slots;
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table[i].dst_rank, from[i].dst_rank);
    slots.push_back(table[i].slot);
  }
  const std::int32_t none = FindPacked::kNotSent;
  EXPECT_EQ(slots, (std::vector<std::int32_t>{0, 4, 4, -4, 4, none, 7, 8, none, none}));
}

}  // namespace
}  // namespace epd::cuda
