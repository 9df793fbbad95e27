// Moves rows through shared memory with bulk copies (TMA), from compute capability 9.0 on.
//
// One thread of a warp asks for a chunk, waits for it and sends it to every target; the copy engine
// of the SM moves the bytes, so few warps keep many of them on their way. Two buffers a warp: the
// next chunk is on its way in while this one goes out. Rows and addresses are multiples of 16 bytes.
// On the host a chunk goes through the same buffer with memcpy, so the same arithmetic runs.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/thread_position.h"

namespace epd::cuda {

inline constexpr std::int32_t kBulkThreads = 256;
inline constexpr std::int64_t kBulkChunkBytes = 8192;

struct BulkShared {
  alignas(128) std::uint8_t buffer[kBulkThreads / kWarpThreads][2][kBulkChunkBytes];
  alignas(8) std::uint64_t arrived[kBulkThreads / kWarpThreads][2];
  std::uint32_t parity[kBulkThreads / kWarpThreads];  // bit b: of buffer b
};

// The PTX behind the mover, one instruction each. Only the first thread of a warp calls them.
namespace bulk {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void InitBarrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(barrier)) : "memory");
}
// Makes the barriers known to the copy engine.
__device__ inline void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void Load(std::uint8_t* to, const std::uint8_t* from, std::uint32_t bytes,
                            std::uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
// Waits for this block's own load, nothing else.
__device__ inline void WaitLoaded(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p; }"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
}
__device__ inline void Store(std::uint8_t* to, const std::uint8_t* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
}
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the buffers may be written again, or until the bytes have arrived.
__device__ inline void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void WaitStoresDone() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#else  // The host; and sm_80, whose kernels of this kind exist but are never launched.

EPD_HOST_DEVICE inline void InitBarrier(std::uint64_t*) {}
EPD_HOST_DEVICE inline void PublishBarriers() {}
EPD_HOST_DEVICE inline void Load(std::uint8_t* to, const std::uint8_t* from, std::uint32_t bytes,
                                 std::uint64_t*) {
  memcpy(to, from, bytes);
}
EPD_HOST_DEVICE inline void WaitLoaded(std::uint64_t*, std::uint32_t) {}
EPD_HOST_DEVICE inline void Store(std::uint8_t* to, const std::uint8_t* from, std::uint32_t bytes) {
  memcpy(to, from, bytes);
}
EPD_HOST_DEVICE inline void CommitStores() {}
EPD_HOST_DEVICE inline void WaitStoresRead() {}
EPD_HOST_DEVICE inline void WaitStoresDone() {}

#endif

}  // namespace bulk

struct BulkMover {
  static constexpr int kWidth = 16;
  static constexpr std::int32_t kThreads = kBulkThreads;
  static constexpr std::int32_t kSpreadThreads = kBulkThreads;
  using Shared = BulkShared;

  EPD_HOST_DEVICE static void Copy(const RowCopy& copy, const ThreadPosition& thread,
                                   Shared& shared) {
    if (thread.InWarp() != 0 || !HasTarget(copy.to)) return;
    const RowPart& part = copy.part;
    const auto words = static_cast<std::int64_t>(copy.row_bytes / kWidth);
    const std::int64_t end = PartBegin(words, part.part + 1, part.num_parts) * kWidth;
    Chunk chunk = {PartBegin(words, part.part, part.num_parts) * kWidth, end, 0};
    if (chunk.begin < end) Load(copy.from, chunk, thread, shared);
    for (; chunk.begin < end; chunk = Next(chunk)) {
      if (Next(chunk).begin < end) {
        bulk::WaitStoresRead();
        Load(copy.from, Next(chunk), thread, shared);
      }
      Send(copy.to, chunk, thread, shared);
    }
    bulk::WaitStoresRead();
  }

  // A block copies its part of a row to every live row of `to`, each warp its part of that. For more than kFanOut of them the
  // part is loaded again, out of L2.
  EPD_HOST_DEVICE static void Spread(const RowSource& from, const TokenRows<std::uint8_t>& to,
                                     const ThreadPosition& thread, Shared& shared) {
    const RowPart& part = from.part;
    const RowPart own = {part.row, part.part * thread.NumWarps() + thread.Warp(),
                         part.num_parts * thread.NumWarps()};
    for (std::int32_t k = 0; k < to.num_live; k += kFanOut) {
      RowTargets some;
      EPD_UNROLL
      for (int j = 0; j < kFanOut; ++j)
        some.row[j] = k + j < to.num_live ? to.live[k + j] : nullptr;
      Copy({from.row, some, from.row_bytes, own}, thread, shared);
    }
  }

 private:
  // The bytes of a row from `begin`, as many as a buffer holds, and the buffer that they go through.
  struct Chunk {
    std::int64_t begin;
    std::int64_t row_end;
    std::int32_t buffer;

    EPD_HOST_DEVICE std::uint32_t Bytes() const {
      const std::int64_t left = row_end - begin;
      return static_cast<std::uint32_t>(left < kBulkChunkBytes ? left : kBulkChunkBytes);
    }
  };
  EPD_HOST_DEVICE static Chunk Next(const Chunk& chunk) {
    return {chunk.begin + kBulkChunkBytes, chunk.row_end, chunk.buffer ^ 1};
  }

  EPD_HOST_DEVICE static void Load(const std::uint8_t* from, const Chunk& chunk,
                                   const ThreadPosition& thread, Shared& shared) {
    bulk::Load(shared.buffer[thread.Warp()][chunk.buffer], from + chunk.begin, chunk.Bytes(),
               &shared.arrived[thread.Warp()][chunk.buffer]);
  }
  EPD_HOST_DEVICE static void Send(const RowTargets& to, const Chunk& chunk,
                                   const ThreadPosition& thread, Shared& shared) {
    std::uint32_t& parity = shared.parity[thread.Warp()];
    bulk::WaitLoaded(&shared.arrived[thread.Warp()][chunk.buffer], (parity >> chunk.buffer) & 1);
    parity ^= 1u << chunk.buffer;
    EPD_UNROLL
    for (int j = 0; j < kFanOut; ++j) {
      if (to.row[j] == nullptr) continue;
      bulk::Store(to.row[j] + chunk.begin, shared.buffer[thread.Warp()][chunk.buffer],
                  chunk.Bytes());
    }
    bulk::CommitStores();
  }
};

// Before the first and behind the last unit of a block.
EPD_HOST_DEVICE inline void BeginShared(BulkShared& shared, const ThreadPosition& thread) {
  if (thread.InWarp() != 0) return;
  shared.parity[thread.Warp()] = 0;
  for (std::uint64_t& barrier : shared.arrived[thread.Warp()]) bulk::InitBarrier(&barrier);
  bulk::PublishBarriers();
}
EPD_HOST_DEVICE inline void EndShared(BulkShared&, const ThreadPosition& thread) {
  if (thread.InWarp() == 0) bulk::WaitStoresDone();
}
template <typename Shared>
EPD_HOST_DEVICE inline void BeginShared(Shared&, const ThreadPosition&) {}
template <typename Shared>
EPD_HOST_DEVICE inline void EndShared(Shared&, const ThreadPosition&) {}

}  // namespace epd::cuda
