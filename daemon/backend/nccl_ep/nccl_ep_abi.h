// The C interface of NCCL EP as of its ABI 2 (library 0.2.0): what epd needs of it, in epd's words.
//
// Every struct begins with its own size and a magic number, and only grows at its end; the library reads
// what the size covers. All tensors here are in device memory; descriptors and their sizes are in host
// memory and need not outlive a call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd::nccl_ep {

using Result = int;  // NCCL's.
inline constexpr Result kSuccess = 0;

inline constexpr uint32_t kMagic = 0xC00FFFEE;
inline constexpr uint32_t kTensorMagic = 0xCAFECAFE;
inline constexpr uint32_t kApiVersion = 2;

// NCCL's data types.
inline constexpr int kInt32 = 2;
inline constexpr int kFloat32 = 7;
inline constexpr int kBfloat16 = 9;

enum Algorithm : int32_t { kHighThroughput = 1 };
enum OverflowPolicy : int32_t { kOverflowTrap = 1, kOverflowDrop = 2 };
enum Layout : int32_t { kExpertMajor = 1 };
enum Direction : int32_t { kForward = 0, kBackward = 1 };

using Group = struct OpaqueGroup*;
using Handle = struct OpaqueHandle*;

struct Tensor {
  uint32_t size = sizeof(Tensor);
  uint32_t magic = kTensorMagic;
  uint32_t num_dims = 0;
  int32_t type = 0;
  void* memory = nullptr;
  void* window = nullptr;  // Of NCCL; null: plain memory.
  uint64_t window_offset = 0;
  size_t* dims = nullptr;  // [num_dims]
};
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, memory) == 16 &&
              offsetof(Tensor, dims) == 40);

// Equal on all members.
struct GroupConfig {
  uint32_t size = sizeof(GroupConfig);
  uint32_t magic = kMagic;
  uint32_t version = kApiVersion;
  int32_t algorithm = kHighThroughput;
  uint32_t num_experts = 0;
  uint32_t max_send_tokens = 0;  // Per rank.
  uint32_t max_recv_slots = 0;   // Per rank; not below max_send_tokens.
  uint32_t max_row_bytes = 0;    // A multiple of 16.
  uint64_t rdma_bytes = 0;       // 0 here and below: the library's choice.
  uint32_t num_queue_pairs = 0;
  uint32_t num_channels = 0;
  uint32_t max_num_sms = 0;
  void* allocate = nullptr;  // Null: cudaMalloc and cudaFree.
  void* free = nullptr;
  void* allocate_context = nullptr;
  uint32_t masks_ranks = 0;  // Low latency only.
  uint64_t timeout_ns = 0;   // Of its kernels' waits for each other.
  int32_t zero_copy = 0;
  int32_t overflow = kOverflowTrap;
  uint32_t top_k = 0;
  uint32_t padding = 0;
};
static_assert(sizeof(GroupConfig) == 112 && offsetof(GroupConfig, rdma_bytes) == 32 &&
              offsetof(GroupConfig, allocate) == 56 && offsetof(GroupConfig, timeout_ns) == 88 &&
              offsetof(GroupConfig, overflow) == 100);

struct HandleConfig {
  uint32_t size = sizeof(HandleConfig);
  uint32_t magic = kMagic;
  size_t alignment = 1;  // Slots of each expert's zone; a power of two.
};
static_assert(sizeof(HandleConfig) == 16);

// What the library tells about a routing. Null: not asked for.
struct LayoutReport {
  uint32_t size = sizeof(LayoutReport);
  uint32_t magic = kMagic;
  Tensor* expert_slots = nullptr;  // [local experts] int32: of each zone, padding included.
  Tensor* source_rows = nullptr;   // Low latency only.
  Tensor* expert_begins = nullptr;
  Tensor* total_slots = nullptr;  // [1] int32: the zones' sum.
  int32_t index_kind = 0;
  uint32_t padding = 0;
};
static_assert(sizeof(LayoutReport) == 48 && offsetof(LayoutReport, total_slots) == 32);

struct DispatchInputs {
  uint32_t size = sizeof(DispatchInputs);
  uint32_t magic = kMagic;
  Tensor* rows = nullptr;     // [T, H]
  Tensor* weights = nullptr;  // [T, K] float32; forward only, and needed there.
  Tensor* scales = nullptr;
};
static_assert(sizeof(DispatchInputs) == 32);

struct DispatchOutputs {
  uint32_t size = sizeof(DispatchOutputs);
  uint32_t magic = kMagic;
  Tensor* rows = nullptr;     // [at least max_recv_slots, H]
  Tensor* weights = nullptr;  // [the same] float32; forward only, and needed there.
  Tensor* scales = nullptr;
  Tensor* indices = nullptr;
};
static_assert(sizeof(DispatchOutputs) == 40);

struct DispatchConfig {
  uint32_t size = sizeof(DispatchConfig);
  uint32_t magic = kMagic;
  uint32_t send_only = 0;
  uint32_t rounds_scales = 0;
  int32_t direction = kForward;
  int32_t quantization = 0;
};
static_assert(sizeof(DispatchConfig) == 24);

struct CombineInputs {
  uint32_t size = sizeof(CombineInputs);
  uint32_t magic = kMagic;
  Tensor* rows = nullptr;     // [slots, H]
  Tensor* weights = nullptr;  // [slots] float32; backward only, and needed there.
  Tensor* scales = nullptr;
};
static_assert(sizeof(CombineInputs) == 32);

struct CombineOutputs {
  uint32_t size = sizeof(CombineOutputs);
  uint32_t magic = kMagic;
  Tensor* rows = nullptr;     // [T, H]
  Tensor* weights = nullptr;  // [T, K] float32; backward only, and needed there.
};
static_assert(sizeof(CombineOutputs) == 24);

struct CombineConfig {
  uint32_t size = sizeof(CombineConfig);
  uint32_t magic = kMagic;
  uint32_t send_only = 0;
  int32_t direction = kForward;
  int32_t quantization = 0;
};
static_assert(sizeof(CombineConfig) == 20);

}  // namespace epd::nccl_ep
