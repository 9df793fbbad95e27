// The staging memory of one device: reserved whole at the start, handed out as arenas that clients map.
//
// An arena is one allocation, because an importer maps allocations whole. What no arena has is held by
// one more allocation, the reserve, so that clients' allocators cannot take it: it is let go and made
// again, smaller or larger, around each arena. Another process may take memory in between; the arena is
// then refused, or the reserve stays short and is topped up at the next occasion.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cuda/device/device_streams.h"
#include "daemon/core/unique_fd.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// How clients get at staging: a file descriptor that keeps the memory alive, or a 64-byte handle of
// memory that goes with this process.
enum class Sharing { kDescriptor, kIpcHandle };
enum class SharingChoice { kAuto, kDescriptor, kIpcHandle };

// What a client needs to map an arena.
struct SharedArena {
  uint64_t bytes = 0;  // Of the allocation; the whole of it is mapped.
  UniqueFd fd;         // kDescriptor.
  IpcHandle handle;    // kIpcHandle.
};

struct StagingPoolOptions {
  Device device = 0;
  uint64_t budget_bytes = 0;
  SharingChoice sharing = SharingChoice::kAuto;
};

// Needs the device's context current on the calling thread; not thread-safe. `streams` are all that
// work on the device in this process; the driver and they outlive the pool.
class CudaStagingPool {
 public:
  // Reserves the budget, rounded up to the driver's granularity.
  //   FAILED_PRECONDITION  the sharing that is asked for, or every one, does not work here (why)
  //   RESOURCE_EXHAUSTED   the device has not that much memory left
  static absl::StatusOr<std::unique_ptr<CudaStagingPool>> Create(const DriverTable& driver,
                                                                 const DeviceStreams& streams,
                                                                 const StagingPoolOptions& options);
  // Arenas that are left go too, if the streams are idle; else all is left to the end of the process.
  ~CudaStagingPool();
  CudaStagingPool(const CudaStagingPool&) = delete;
  CudaStagingPool& operator=(const CudaStagingPool&) = delete;

  Sharing sharing() const { return sharing_; }
  uint64_t budget_bytes() const { return budget_bytes_; }
  uint64_t arena_bytes() const { return arena_bytes_; }       // Of all arenas.
  uint64_t reserved_bytes() const { return reserve_.bytes; }  // What the reserve holds now.

  // Makes an arena of at least `bytes`, zeroed, and returns its address in this process.
  //   RESOURCE_EXHAUSTED   the budget or the device has not that much left
  //   FAILED_PRECONDITION  the streams have work left; nothing was done
  absl::StatusOr<DevicePointer> Take(uint64_t bytes);
  // A descriptor of its own, or the handle. NOT_FOUND: no such arena.
  absl::StatusOr<SharedArena> Share(DevicePointer arena) const;
  // Gives the memory back to the reserve; clients that map it by descriptor keep it alive, and it then
  // counts against the device, not the budget.
  //   FAILED_PRECONDITION  the streams have work left; nothing was done
  //   NOT_FOUND            no such arena
  absl::Status GiveBack(DevicePointer arena);

 private:
  struct Memory {
    uint64_t bytes = 0;  // 0: none.
    MemoryHandle handle = 0;
    DevicePointer address = 0;
  };
  CudaStagingPool(const DriverTable& driver, const DeviceStreams& streams, Device device)
      : driver_(driver), streams_(streams), device_(device) {}

  absl::Status Choose(SharingChoice choice);
  uint64_t RoundUp(uint64_t bytes) const;
  // The reserve is never mapped where it need not be.
  absl::StatusOr<Memory> Allocate(uint64_t bytes, bool map) const;
  absl::Status Map(Memory& memory) const;
  void Release(Memory& memory) const;
  void TopUp();

  const DriverTable& driver_;
  const DeviceStreams& streams_;
  const Device device_;
  Sharing sharing_ = Sharing::kDescriptor;
  uint64_t granularity_ = 0;
  uint64_t budget_bytes_ = 0;
  uint64_t arena_bytes_ = 0;
  Memory reserve_;
  std::map<DevicePointer, Memory> arenas_;
};

// What each of `num_clients` processes on a device may give XLA as XLA_PYTHON_CLIENT_MEM_FRACTION, in
// hundredths rounded down: the device's memory less the staging and a context for each process and for
// the worker. 0: nothing is left.
double ClientMemoryFraction(uint64_t device_bytes, uint64_t staging_bytes, int num_clients);

}  // namespace epd::cuda
