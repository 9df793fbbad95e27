// handle_mem as an argument of the four operations that move rows: checked against the group and
// the call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/c/epd_client.h"
#include "client/c/group.h"
#include "client/c/status.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// What such a call says of its plan and rows.
struct RowsArguments {
  uint32_t rank = 0;
  const void* handle_mem = nullptr;
  size_t handle_mem_bytes = 0;
  uint32_t top_k = 0;
  uint32_t alignment = 0;
  epd_dtype dtype = EPD_DTYPE_UNSPECIFIED;
  uint32_t hidden = 0;
  uint64_t num_tokens = 0;
  uint64_t recv_capacity = 0;
};

// Bytes of one element; 0 for what is no dtype.
uint64_t DtypeBytes(epd_dtype dtype);

// Checks sizes and dtype against what the group was formed for, and then the plan.
//   INVALID_ARGUMENT  a size does not fit the group, or the plan is of another group, rank or call
//   ABORTED           the plan is from before the group was formed anew
//   DATA_LOSS         the plan is corrupt
Status CheckRows(const Formation& formation, const RowsArguments& args, RoutingPlanView* plan);

// Checks only sizes and dtype.
Status CheckSizes(const Formation& formation, const RowsArguments& args);

// Checks top_k and num_tokens against what the group was formed for.
Status CheckTokens(const Formation& formation, uint32_t top_k, uint64_t num_tokens);

// Writes the fingerprint and sizes that all four have in common.
void DescribeRows(const RowsArguments& args, const RoutingPlanView& plan,
                  shm::SlotRequest* request);

}  // namespace epd::client
