// Every call that a GPU worker makes to NCCL, as one struct of function pointers (driver_table.h).
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cuda/driver/cuda_abi.h"

namespace epd::cuda {

// ncclResult_t.
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclSystemError = 2;
inline constexpr NcclResult kNcclRemoteError = 6;
inline constexpr NcclResult kNcclInProgress = 7;

// ncclDataType_t: counts are bytes.
inline constexpr int kNcclInt8 = 0;

using NcclComm = struct OpaqueNcclComm*;

struct NcclUniqueId {
  char bytes[128];  // Secret.
};

// ncclConfig_t as of NCCL 2.18, which newer ones take by its size and version.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;  // As NCCL_CONFIG_INITIALIZER.
  unsigned version = 21800;     // 10000 * major + 100 * minor + patch.
  int blocking = 0;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;  // The budget of SMs.
  const char* net_name = nullptr;
  int split_share = kUnset;

  static constexpr int kUnset = -2147483647 - 1;
};

struct NcclTable {
  NcclResult (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(NcclResult code) = nullptr;
  // Returns at once with `config.blocking` 0; poll get_async_error until it is not kNcclInProgress.
  NcclResult (*init_rank)(NcclComm* comm, int num_ranks, NcclUniqueId id, int rank,
                          NcclConfig* config) = nullptr;
  NcclResult (*get_async_error)(NcclComm comm, NcclResult* state) = nullptr;
  // All members. The new communicator has members in the order of `key`, and the parent stays. Poll as
  // above, the parent too.
  NcclResult (*split)(NcclComm parent, int color, int key, NcclComm* comm,
                      NcclConfig* config) = nullptr;
  NcclResult (*finalize)(NcclComm comm) = nullptr;
  NcclResult (*destroy)(NcclComm comm) = nullptr;  // Collective on the node: all peers must live.
  NcclResult (*abort)(NcclComm comm) = nullptr;    // Local.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void* from, size_t count, int type, int peer, NcclComm comm,
                     Stream stream) = nullptr;
  NcclResult (*receive)(void* to, size_t count, int type, int peer, NcclComm comm,
                        Stream stream) = nullptr;
};

struct LoadedNccl {
  NcclTable table;
  int version = 0;      // 10000 * major + 100 * minor + patch.
  std::string path;     // "": none.
  std::string problem;  // "": usable.

  bool ok() const { return problem.empty(); }
};

// Opens the NCCL at `path`. The library stays open for the life of the process.
LoadedNccl LoadNccl(const std::string& path);

}  // namespace epd::cuda
