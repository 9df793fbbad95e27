// Puts slices of rows where they belong in an output: the end of a ragged all-to-all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/data_type.h"

namespace epd {

// Rows [begin, end) of the output, and where they come from. Not empty.
struct SliceLanding {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::byte* rows = nullptr;
};

struct LandSlicesArgs {
  std::vector<SliceLanding> landings;  // Inside of the output.
  std::uint64_t row_bytes = 0;
  std::int64_t num_rows = 0;
  const std::byte* others = nullptr;  // [num_rows] what the output is where nothing lands.
  std::byte* output = nullptr;        // [num_rows], none of the above.
  // Of rows that land on each other: they are added in the order of `landings`, as PullGather adds. Unused where none do.
  DataType dtype = DataType::kFloat32;
};

void LandSlices(LandSlicesArgs args);

}  // namespace epd
