// One operation as a GPU's stream makes it: what it is, its buffers, and the launches around its waits.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "client/c/group.h"
#include "client/c/status.h"
#include "client/cuda/epd_stream.h"
#include "kernels/cuda/driver/cuda_abi.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "kernels/region/region_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// What is the same at every use of a call site.
struct StreamCall {
  shm::Kind kind = shm::Kind::kPrepare;
  uint32_t rank = 0;
  Program program = {};  // Digest of the executable or of `name`.
  uint32_t ordinal = 0;
  std::string name;   // Empty: the site has none.
  std::string scope;  // Of a site without a name: where in its program it stands, for people.
  uint32_t top_k = 0;
  uint32_t alignment = 0;  // Of a site at least 1; 0 means that.
  uint64_t num_tokens = 0;
  uint64_t recv_capacity = 0;  // Not of prepare.
  uint32_t dtype = 0;          // epd_dtype of the rows; not of prepare, as the rest.
  uint64_t row_bytes = 0;
  bool has_weights = false;
};

// Device memory of a use; nothing of it is set at first.
struct StreamBuffers : epd_stream_buffers {
  StreamBuffers() : epd_stream_buffers{} {}
};

// Of a call whose rows the worker moves.
RegionLayout LayoutOf(const StreamCall& call, const RoutingSpec& spec);

// Where the launches of a use read and write beside its buffers.
struct StreamPlaces {
  uint8_t* region = nullptr;
  cuda::UseWords* words = nullptr;  // On the device; each use writes them before it reads them.
  cuda::PlanScratch scratch = {};   // Of a prepare.
  cuda::ReportWord* report = nullptr;
  int32_t* counts = nullptr;  // [R, E], out of the region: kernels read them also after a failure.
  // Of a prepare whose counts each rank reads for itself, [R] of [E]: null where the worker has gathered them.
  const int32_t* const* staged_counts = nullptr;
  uint16_t* told_counts = nullptr;  // In the publish's slot: proto/epd/v1/route_counts.h.
};

//   INVALID_ARGUMENT  a buffer that the call needs is missing, or not aligned to 16 bytes
Status CheckBuffers(const StreamCall& call, const StreamBuffers& buffers);

// Rows that one copy moves.
struct Block {
  const void* from;
  void* to;
  uint64_t num_rows;
  uint64_t row_bytes;
  const int64_t* live = nullptr;  // How many of them there are, where only the device knows.
};
// Weights in pieces of one size, each a row for the copy.
Block WeightsBlock(const void* from, void* to, uint64_t num_weights);
// Copies live rows if `status` is 1. The rest of the target is not touched, or with `zeros` cleared.
cuda::LaunchList CopyBlock(const Block& block, const uint32_t* status, bool zeros,
                           const cuda::DeviceShape& device);

// What follows is for calls whose rows the worker moves, and for prepares.
//
// Routing as device code takes it: expert_owner is a pointer that the device can read.
cuda::LaunchList CountLaunchesOf(const StreamCall& call, const RoutingSpec& spec,
                                 const StreamBuffers& buffers, const StreamPlaces& places,
                                 const cuda::DeviceShape& device);
// Before publish: into the region; nothing is written unless the announce was answered well.
std::array<cuda::LaunchList, 3> CopyInOf(const StreamCall& call, const RoutingSpec& spec,
                                         const StreamBuffers& buffers, const StreamPlaces& places,
                                         const cuda::DeviceShape& device);
// After publish: out of the region; zeros unless the publish was answered well.
std::array<cuda::LaunchList, 2> CopyOutOf(const StreamCall& call, const RoutingSpec& spec,
                                          const StreamBuffers& buffers, const StreamPlaces& places,
                                          const cuda::DeviceShape& device);

}  // namespace epd::client
