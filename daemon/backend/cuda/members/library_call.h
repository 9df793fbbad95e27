// One operation's rows, to be moved by a library between the members of a communicator: where they lie on
// this member's device.
#pragma once

#include <cstdint>

#include "kernels/cuda/driver/driver_table.h"
#include "proto/epd/v1/segment.h"

namespace epd::cuda {

struct LibraryCall {
  shm::Kind kind = shm::Kind::kDispatch;
  int64_t num_tokens = 0;         // T
  int32_t top_k = 0;              // K
  int64_t hidden = 0;             // H: elements of a row.
  int64_t alignment = 1;          // Slots.
  int handle = 0;                 // Of the library's for this alignment and top-k.
  bool tells_routes = true;       // It is told `topk` first; else it has these routes already.
  int64_t in_slots = 0;           // Of a gather's rows.
  int64_t out_slots = 0;          // Of a scatter's output.
  DevicePointer topk = 0;         // [T, K] int32; -1: no route.
  DevicePointer rows_in = 0;      // A scatter's [T, H], a gather's [in_slots, H].
  DevicePointer weights_in = 0;   // Dispatch [T, K], dispatch backward [in_slots]; 0: none.
  DevicePointer rows_out = 0;     // A scatter's [out_slots, H], a gather's [T, H].
  DevicePointer weights_out = 0;  // Dispatch [out_slots], dispatch backward [T, K]; 0: none.
  // What the library says of routes that it is told; else nobody writes it.
  DevicePointer zone_slots = 0;   // [local experts] int32
  DevicePointer total_slots = 0;  // [1] int32
};

}  // namespace epd::cuda
