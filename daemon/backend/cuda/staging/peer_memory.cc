#include "daemon/backend/cuda/staging/peer_memory.h"

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

absl::Status Refused(const DriverTable& driver, const char* call, Result code, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("another worker's staging of ", bytes, " bytes cannot be mapped: ",
                   Describe(driver, call, code), "; see peer access in epctl doctor"));
}

}  // namespace

absl::StatusOr<PeerMemory> MapPeerMemory(const DriverTable& driver, Device device, int fd,
                                         uint64_t bytes) {
  MemoryHandle handle = 0;
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  Result code = driver.memory_import(&handle, shareable, kHandlePosixDescriptor);
  if (code != kSuccess) return Refused(driver, "cuMemImportFromShareableHandle", code, bytes);
  PeerMemory memory{.address = 0, .bytes = bytes};
  code = driver.address_reserve(&memory.address, bytes, 0, 0, 0);
  if (code != kSuccess) {
    driver.memory_release(handle);
    return Refused(driver, "cuMemAddressReserve", code, bytes);
  }
  code = driver.memory_map(memory.address, bytes, 0, handle, 0);
  driver.memory_release(handle);  // The mapping holds it.
  if (code != kSuccess) {
    driver.address_free(memory.address, bytes);
    return Refused(driver, "cuMemMap", code, bytes);
  }
  const AccessDescription access = {.location = {kLocationDevice, device}, .flags = kAccessRead};
  code = driver.memory_set_access(memory.address, bytes, &access, 1);
  if (code == kSuccess) return memory;
  UnmapPeerMemory(driver, memory);
  return Refused(driver, "cuMemSetAccess", code, bytes);
}

void UnmapPeerMemory(const DriverTable& driver, const PeerMemory& memory) {
  driver.memory_unmap(memory.address, memory.bytes);
  driver.address_free(memory.address, memory.bytes);
}

}  // namespace epd::cuda
