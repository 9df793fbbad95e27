// A page of words that processes share and that streams wait on; and the small parts of a probe.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/gpu/driver.h"

namespace epd::gpu {

// Words of an op slot, as constants only: see the stream's side in ArmAndWait.
struct Words {
  std::atomic<std::uint32_t> ready;
  std::atomic<std::uint32_t> done;
  std::atomic<std::uint32_t> done_by_gpu;  // private to the worker's stream
  std::atomic<std::uint32_t> stop;
  std::atomic<std::uint32_t> started;
};

// A memfd page, inherited by children that are forked after it was made.
inline Words* MakeWords() {
  const int fd = memfd_create("epd-gpu-words", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, 4096) != 0) std::abort();
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) std::abort();
  return static_cast<Words*>(page);
}

// The page as this process's device sees it.
inline CUdeviceptr RegisterWords(const Driver& driver, Words* words) {
  CUdeviceptr on_device = 0;
  Check(driver, driver.MemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP),
        "cuMemHostRegister");
  Check(driver, driver.MemHostGetDevicePointer(&on_device, words, 0), "cuMemHostGetDevicePointer");
  return on_device;
}

inline CUstreamBatchMemOpParams WriteOp(CUdeviceptr address, std::uint32_t value) {
  CUstreamBatchMemOpParams op = {};
  op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = address;
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return op;
}

inline CUstreamBatchMemOpParams WaitOp(CUdeviceptr address, std::uint32_t value) {
  CUstreamBatchMemOpParams op = {};
  op.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = address;
  op.waitValue.value = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  return op;
}

// done := 0, ready := 1, wait for done >= 1.
inline std::array<CUstreamBatchMemOpParams, 3> ArmAndWaitOps(CUdeviceptr words) {
  return {WriteOp(words + offsetof(Words, done), 0), WriteOp(words + offsetof(Words, ready), 1),
          WaitOp(words + offsetof(Words, done), 1)};
}
inline void ArmAndWait(const Driver& driver, CUstream stream, CUdeviceptr words) {
  auto ops = ArmAndWaitOps(words);
  Check(driver, driver.StreamBatchMemOp(stream, ops.size(), ops.data(), 0), "cuStreamBatchMemOp");
}

inline double NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// Polls until `condition` holds; false after `seconds`.
template <typename Condition>
bool PollFor(double seconds, Condition condition) {
  const double end = NowUs() + seconds * 1e6;
  while (!condition()) {
    if (NowUs() > end) return false;
  }
  return true;
}

struct Quantiles {
  double p50;
  double p99;
};

inline Quantiles QuantilesOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() * 99 / 100]};
}

inline const char* Json(bool value) { return value ? "true" : "false"; }

}  // namespace epd::gpu
