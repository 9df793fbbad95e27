// Memory of the fake driver.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda/fake_call.h"

namespace epd::cuda {
namespace {

// The device that memory was made for, as its name says (MakeMemory). -1: it is no such memory.
int HomeOf(int fd) {
  char link[64];
  char name[128] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, name, sizeof name - 1) < 0) return -1;
  int home = -1;
  return std::sscanf(name, "/memfd:fake-device-memory-%d", &home) == 1 ? home : -1;
}

}  // namespace

void FakeDriver::FillMemoryCalls() {
  if (machine_.with_runtime) {
    table_.runtime_take_last_error = +[]() -> int {
      FakeDriver& d = Get();
      std::lock_guard lock(d.mutex_);
      d.calls_.push_back("cudaGetLastError");
      const bool owed = d.owes_last_error_;
      d.owes_last_error_ = false;
      return owed ? kInvalidValue : kSuccess;
    };
  }
  EPD_FAKE_CALL(memory_granularity, "cuMemGetAllocationGranularity", kNeedsContext,
                (size_t * bytes, const AllocationProperties*, int), {
                  if (!d.machine_.virtual_memory) return kNotSupported;
                  *bytes = kGranularity;
                  return kSuccess;
                });
  EPD_FAKE_CALL(
      memory_create, "cuMemCreate", kNeedsContext | kMayBlock,
      (MemoryHandle * handle, size_t bytes, const AllocationProperties* properties, uint64_t), {
        const bool exportable = properties->requested_handle_types == kHandlePosixDescriptor;
        if (!d.machine_.virtual_memory) return kNotSupported;
        if (exportable && !d.machine_.posix_descriptors) return kNotSupported;
        if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
        // cuda.h at gpuDirectRDMACapable: ask for the attribute first, or creation fails.
        const bool rdma = properties->flags.gpu_direct_rdma_capable != 0;
        if (rdma && !(d.machine_.rdma && d.machine_.rdma_memory)) return kNotSupported;
        d.rdma_bytes_ += rdma ? bytes : 0;
        const int home = d.MachineNumber(properties->location.id);
        const int fd = d.MakeMemory(bytes, home);
        if (fd < 0) return kOutOfMemory;
        *handle = d.next_++;
        d.handles_[*handle] = {.fd = fd, .bytes = bytes, .home = home, .exportable = exportable};
        return kSuccess;
      });
  EPD_FAKE_CALL(memory_release, "cuMemRelease", kNeedsContext, (MemoryHandle handle), {
    const auto found = d.handles_.find(handle);
    if (found == d.handles_.end()) return kInvalidValue;
    const bool in_use = std::any_of(d.mapped_.begin(), d.mapped_.end(), [&](const auto& entry) {
      return entry.second.handle == handle;
    });
    if (!in_use && !found->second.imported) d.used_bytes_ -= found->second.bytes;
    close(found->second.fd);
    d.handles_.erase(found);
    return kSuccess;
  });
  EPD_FAKE_CALL(memory_export, "cuMemExportToShareableHandle", kNeedsContext,
                (void* shareable, MemoryHandle handle, int type, uint64_t), {
                  const auto found = d.handles_.find(handle);
                  if (found == d.handles_.end() || type != kHandlePosixDescriptor ||
                      !found->second.exportable) {
                    return kInvalidValue;
                  }
                  const int fd = dup(found->second.fd);
                  std::memcpy(shareable, &fd, sizeof fd);
                  return kSuccess;
                });
  EPD_FAKE_CALL(
      memory_import, "cuMemImportFromShareableHandle", kNeedsContext,
      (MemoryHandle * handle, void* shareable, int type), {
        const int fd = dup(static_cast<int>(reinterpret_cast<intptr_t>(shareable)));
        const off_t bytes = lseek(fd, 0, SEEK_END);
        const int home = HomeOf(fd);
        if (type != kHandlePosixDescriptor || bytes <= 0 || home < 0) {
          return kInvalidValue;
        }
        *handle = d.next_++;
        d.handles_[*handle] = {
            .fd = fd, .bytes = static_cast<uint64_t>(bytes), .home = home, .imported = true};
        return kSuccess;
      });
  EPD_FAKE_CALL(address_reserve, "cuMemAddressReserve", kNeedsContext,
                (DevicePointer * address, size_t bytes, size_t, DevicePointer hint, uint64_t), {
                  void* got = mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                  if (got == MAP_FAILED) return kOutOfMemory;
                  *address = reinterpret_cast<DevicePointer>(got);
                  d.reserved_[*address] = bytes;
                  return kSuccess;
                });
  EPD_FAKE_CALL(address_free, "cuMemAddressFree", kNeedsContext,
                (DevicePointer address, size_t bytes), {
                  const auto found = d.reserved_.find(address);
                  if (found == d.reserved_.end() || found->second != bytes) return kInvalidValue;
                  if (d.mapped_.count(address) > 0) {
                    d.Violation("cuMemAddressFree", "the range is still mapped");
                    return kInvalidValue;
                  }
                  munmap(reinterpret_cast<void*>(address), bytes);
                  d.reserved_.erase(found);
                  return kSuccess;
                });
  EPD_FAKE_CALL(
      memory_map, "cuMemMap", d.MappingRules(kMayBlock),
      (DevicePointer address, size_t bytes, size_t offset, MemoryHandle handle, uint64_t), {
        const auto reserved = d.reserved_.find(address);
        const auto memory = d.handles_.find(handle);
        if (reserved == d.reserved_.end() || memory == d.handles_.end()) {
          return kInvalidValue;
        }
        // Allocations are mapped whole.
        if (offset != 0 || bytes != memory->second.bytes || bytes > reserved->second) {
          return kInvalidValue;
        }
        const int fd = dup(memory->second.fd);
        mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0);
        d.mapped_[address] = {.handle = handle,
                              .bytes = bytes,
                              .fd = fd,
                              .home = memory->second.home,
                              .imported = memory->second.imported};
        return kSuccess;
      });
  EPD_FAKE_CALL(memory_unmap, "cuMemUnmap", d.MappingRules(kMayBlock | kTakesAway),
                (DevicePointer address, size_t bytes), {
                  const auto found = d.mapped_.find(address);
                  if (found == d.mapped_.end() || found->second.bytes != bytes) {
                    return kInvalidValue;
                  }
                  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
                  close(found->second.fd);
                  if (d.handles_.count(found->second.handle) == 0 && !found->second.imported) {
                    d.used_bytes_ -= bytes;
                  }
                  d.mapped_.erase(found);
                  return kSuccess;
                });
  EPD_FAKE_CALL(memory_set_access, "cuMemSetAccess", d.MappingRules(kMayBlock),
                (DevicePointer address, size_t bytes, const AccessDescription* access, size_t), {
                  const auto found = d.mapped_.find(address);
                  const bool writes = access->flags == kAccessReadWrite;
                  if (found == d.mapped_.end() || (!writes && access->flags != kAccessRead)) {
                    return kInvalidValue;
                  }
                  Mapping& mapping = found->second;
                  // cuda.h at cuMemSetAccess: the device must be able to reach where the memory is.
                  const int number = d.MachineNumber(access->location.id);
                  if (!d.machine_.CanAccess(number, mapping.home)) {
                    return kInvalidDevice;
                  }
                  // A rule of epd's: workers read each other's memory, and nothing else.
                  if (writes && mapping.imported && number != mapping.home) {
                    d.Violation("cuMemSetAccess", "memory of another worker could be written");
                  }
                  mprotect(reinterpret_cast<void*>(address), bytes,
                           writes ? PROT_READ | PROT_WRITE : PROT_READ);
                  mapping.accessible = true;
                  return kSuccess;
                });
  EPD_FAKE_CALL(memory_allocate, "cuMemAlloc", kNeedsContext | kMayBlock,
                (DevicePointer * address, size_t bytes), {
                  const int fd = d.MakeMemory(bytes, std::max(d.device_, 0));
                  if (fd < 0) return kOutOfMemory;
                  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                  *address = reinterpret_cast<DevicePointer>(got);
                  d.mapped_[*address] = {.bytes = bytes, .fd = fd, .accessible = true};
                  return kSuccess;
                });
  EPD_FAKE_CALL(
      memory_free, "cuMemFree", kNeedsContext | kMayBlock | kTakesAway, (DevicePointer address), {
        const auto found = d.mapped_.find(address);
        if (found == d.mapped_.end() || found->second.handle != 0 || found->second.opened) {
          return kInvalidValue;
        }
        munmap(reinterpret_cast<void*>(address), found->second.bytes);
        close(found->second.fd);
        d.used_bytes_ -= found->second.bytes;
        d.mapped_.erase(found);
        return kSuccess;
      });
}

}  // namespace epd::cuda
