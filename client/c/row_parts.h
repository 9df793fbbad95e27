// The arrays of a scatter, whose rows travel side by side as one row each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/c/epd_client.h"
#include "client/c/plan_argument.h"
#include "client/c/status.h"
#include "kernels/scatter_rows.h"

namespace epd::client {

struct RowPart {
  const void* tokens = nullptr;  // [num_tokens, row_bytes]
  void* recv_tokens = nullptr;   // [recv_capacity, row_bytes]
  uint64_t row_bytes = 0;
  StageRowSlice slice = {};
};

// The parts of `args` in order, the first of its `tokens`. With more than one `rows` says what they are together: elements of a
// byte, with a tag that tells how they are divided. Sizes that are none are left to CheckRows.
//   INVALID_ARGUMENT  an array of `more` has no dtype, no elements, or too many are given
Status DivideRows(const epd_scatter_args& args, RowsArguments* rows, std::vector<RowPart>* parts);

// Between the arrays and rows [num_rows] of a stage or an output, which follow each other from `stage` on.
void PackRows(const RowPart& part, uint64_t num_rows, std::byte* stage);
void UnpackRows(const RowPart& part, uint64_t num_rows, const std::byte* stage);

}  // namespace epd::client
