#include "daemon/backend/cuda/staging/staging_pool.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/device/device_trials.h"

namespace epd::cuda {
namespace {

// cuMemAlloc knows no granularity; whole pages of this size are not shared with other allocations.
constexpr uint64_t kIpcGranularity = uint64_t{2} << 20;
// What a context takes of a device besides what is allocated in it.
constexpr uint64_t kContextBytes = uint64_t{512} << 20;

absl::Status Exhausted(const DriverTable& driver, const char* call, Result code, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(Describe(driver, call, code), " for ", bytes,
                   " bytes of staging; start epd before the clients, give them less memory "
                   "(XLA_PYTHON_CLIENT_MEM_FRACTION), or give epd a smaller pool"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStagingPool>> CudaStagingPool::Create(
    const DriverTable& driver, const DeviceStreams& streams, const StagingPoolOptions& options) {
  std::unique_ptr<CudaStagingPool> pool(new CudaStagingPool(driver, streams, options.device));
  if (absl::Status chosen = pool->Choose(options.sharing); !chosen.ok()) return chosen;
  pool->budget_bytes_ = pool->RoundUp(options.budget_bytes);
  absl::StatusOr<Memory> reserve = pool->Allocate(pool->budget_bytes_, /*map=*/false);
  if (!reserve.ok()) return reserve.status();
  pool->reserve_ = *reserve;
  return pool;
}

absl::Status CudaStagingPool::Choose(SharingChoice choice) {
  std::string why;
  if (choice != SharingChoice::kIpcHandle) {
    why = TryVirtualMemory(driver_, device_);
    if (why.empty()) {
      const AllocationProperties properties = StagingProperties(driver_, device_);
      size_t granularity = 0;
      const Result code =
          driver_.memory_granularity(&granularity, &properties, kGranularityMinimum);
      if (code != kSuccess) {
        return absl::InternalError(Describe(driver_, "cuMemGetAllocationGranularity", code));
      }
      sharing_ = Sharing::kDescriptor;
      granularity_ = granularity;
      return absl::OkStatus();
    }
    if (choice == SharingChoice::kDescriptor) {
      return absl::FailedPreconditionError(
          absl::StrCat("staging=vmm does not work on this device: ", why, "; use staging=auto"));
    }
  }
  const std::string no_handle = TryIpcHandle(driver_);
  if (!no_handle.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("staging cannot be shared on this device: ", why, why.empty() ? "" : "; ",
                     no_handle, "; epctl doctor says what it offers"));
  }
  sharing_ = Sharing::kIpcHandle;
  granularity_ = kIpcGranularity;
  return absl::OkStatus();
}

CudaStagingPool::~CudaStagingPool() {
  if (!streams_.CheckIdle().ok()) return;
  for (auto& [unused, memory] : arenas_) Release(memory);
  Release(reserve_);
}

uint64_t CudaStagingPool::RoundUp(uint64_t bytes) const {
  return (bytes + granularity_ - 1) / granularity_ * granularity_;
}

absl::StatusOr<CudaStagingPool::Memory> CudaStagingPool::Allocate(uint64_t bytes, bool map) const {
  Memory memory;
  if (bytes == 0) return memory;
  if (sharing_ == Sharing::kIpcHandle) {
    const Result code = driver_.memory_allocate(&memory.address, bytes);
    if (code != kSuccess) return Exhausted(driver_, "cuMemAlloc", code, bytes);
    memory.bytes = bytes;
    return memory;
  }
  const AllocationProperties properties = StagingProperties(driver_, device_);
  const Result code = driver_.memory_create(&memory.handle, bytes, &properties, 0);
  if (code != kSuccess) return Exhausted(driver_, "cuMemCreate", code, bytes);
  memory.bytes = bytes;
  if (!map) return memory;
  if (absl::Status mapped = Map(memory); !mapped.ok()) {
    Release(memory);
    return mapped;
  }
  return memory;
}

absl::Status CudaStagingPool::Map(Memory& memory) const {
  DevicePointer address = 0;
  Result code = driver_.address_reserve(&address, memory.bytes, 0, 0, 0);
  if (code != kSuccess) return Exhausted(driver_, "cuMemAddressReserve", code, memory.bytes);
  const char* call = "cuMemMap";
  code = driver_.memory_map(address, memory.bytes, 0, memory.handle, 0);
  const bool mapped = code == kSuccess;
  if (mapped) {
    const AccessDescription access = {.location = {kLocationDevice, device_},
                                      .flags = kAccessReadWrite};
    call = "cuMemSetAccess";
    code = driver_.memory_set_access(address, memory.bytes, &access, 1);
  }
  if (code == kSuccess) {
    memory.address = address;
    return absl::OkStatus();
  }
  if (mapped) driver_.memory_unmap(address, memory.bytes);
  driver_.address_free(address, memory.bytes);
  return Exhausted(driver_, call, code, memory.bytes);
}

void CudaStagingPool::Release(Memory& memory) const {
  if (memory.bytes == 0) return;
  if (sharing_ == Sharing::kIpcHandle) {
    driver_.memory_free(memory.address);
  } else {
    if (memory.address != 0) {
      driver_.memory_unmap(memory.address, memory.bytes);
      driver_.address_free(memory.address, memory.bytes);
    }
    driver_.memory_release(memory.handle);
  }
  memory = Memory{};
}

// Makes the reserve hold again what no arena has; as it is when the device has not enough now.
void CudaStagingPool::TopUp() {
  const uint64_t wanted = budget_bytes_ - arena_bytes_;
  if (reserve_.bytes == wanted) return;
  Release(reserve_);
  absl::StatusOr<Memory> reserve = Allocate(wanted, /*map=*/false);
  if (reserve.ok()) reserve_ = *reserve;
}

absl::StatusOr<DevicePointer> CudaStagingPool::Take(uint64_t bytes) {
  if (absl::Status idle = streams_.CheckIdle(); !idle.ok()) return idle;
  const uint64_t rounded = RoundUp(bytes);
  if (rounded == 0 || rounded > budget_bytes_ - arena_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an arena of ", bytes, " bytes does not fit: ", budget_bytes_ - arena_bytes_,
                     " of ", budget_bytes_, " bytes of staging are free on device ", device_));
  }
  Release(reserve_);
  absl::StatusOr<Memory> memory = Allocate(rounded, /*map=*/true);
  if (memory.ok()) arena_bytes_ += rounded;
  TopUp();
  if (!memory.ok()) return memory.status();
  arenas_[memory->address] = *memory;
  const Result code = driver_.fill_async(memory->address, 0, rounded, streams_.at(0));
  if (code == kSuccess) return memory->address;
  GiveBack(memory->address).IgnoreError();
  return absl::InternalError(Describe(driver_, "cuMemsetD8Async", code));
}

absl::StatusOr<SharedArena> CudaStagingPool::Share(DevicePointer arena) const {
  const auto found = arenas_.find(arena);
  if (found == arenas_.end()) return absl::NotFoundError("no such arena");
  SharedArena shared;
  shared.bytes = found->second.bytes;
  if (sharing_ == Sharing::kIpcHandle) {
    const Result code = driver_.ipc_get_handle(&shared.handle, arena);
    if (code == kSuccess) return shared;
    // The runtime remembers what failed, and would fail the next launch with it.
    if (driver_.runtime_take_last_error != nullptr) driver_.runtime_take_last_error();
    return absl::InternalError(Describe(driver_, "cuIpcGetMemHandle", code));
  }
  int fd = -1;
  const Result code = driver_.memory_export(&fd, found->second.handle, kHandlePosixDescriptor, 0);
  if (code != kSuccess) {
    return absl::ResourceExhaustedError(Describe(driver_, "cuMemExportToShareableHandle", code));
  }
  shared.fd.reset(fd);
  return shared;
}

absl::Status CudaStagingPool::GiveBack(DevicePointer arena) {
  const auto found = arenas_.find(arena);
  if (found == arenas_.end()) return absl::NotFoundError("no such arena");
  if (absl::Status idle = streams_.CheckIdle(); !idle.ok()) return idle;
  arena_bytes_ -= found->second.bytes;
  Release(found->second);
  arenas_.erase(found);
  TopUp();
  return absl::OkStatus();
}

double ClientMemoryFraction(uint64_t device_bytes, uint64_t staging_bytes, int num_clients) {
  if (device_bytes == 0 || num_clients <= 0) return 0;
  const uint64_t contexts = kContextBytes * (static_cast<uint64_t>(num_clients) + 1);
  const uint64_t taken = staging_bytes + contexts;
  if (taken >= device_bytes) return 0;
  const double share =
      static_cast<double>(device_bytes - taken) / static_cast<double>(device_bytes) / num_clients;
  return std::floor(share * 100) / 100;
}

}  // namespace epd::cuda
