// Goal: slices land where they are said to, the rest is kept, and rows that land on each other are summed in their order.
#include "kernels/land_slices.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace epd {
namespace {

std::vector<float> Land(const std::vector<std::pair<std::int64_t, std::vector<float>>>& slices) {
  const std::vector<float> others(8, -1.0f);
  std::vector<float> output(8);
  LandSlicesArgs args;
  for (const auto& [begin, rows] : slices) {
    args.landings.push_back({begin, begin + static_cast<std::int64_t>(rows.size()),
                             reinterpret_cast<const std::byte*>(rows.data())});
  }
  args.row_bytes = sizeof(float);
  args.num_rows = 8;
  args.others = reinterpret_cast<const std::byte*>(others.data());
  args.output = reinterpret_cast<std::byte*>(output.data());
  LandSlices(std::move(args));
  return output;
}

TEST(LandSlicesTest, WhatNothingLandsOnIsKept) {
  EXPECT_EQ(Land({}), std::vector<float>(8, -1.0f));
  EXPECT_EQ(Land({{6, {1, 2}}, {1, {3, 4, 5}}}), (std::vector<float>{-1, 3, 4, 5, -1, -1, 1, 2}));
}

TEST(LandSlicesTest, RowsThatLandOnEachOtherAreAddedInTheirOrder) {
  EXPECT_EQ(Land({{2, {1, 1, 1, 1}}, {0, {10, 20, 30}}, {2, {100}}}),
            (std::vector<float>{10, 20, 131, 1, 1, 1, -1, -1}));
  // 1e8 + 1 is 1e8 in fp32: the order shows.
  EXPECT_EQ(Land({{0, {1}}, {0, {1e8f}}, {0, {-1e8f}}})[0], 0.0f);
  EXPECT_EQ(Land({{0, {1e8f}}, {0, {-1e8f}}, {0, {1}}})[0], 1.0f);
}

}  // namespace
}  // namespace epd
