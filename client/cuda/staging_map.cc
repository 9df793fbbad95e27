#include "client/cuda/staging_map.h"

#include <cstring>

namespace epd::client {

using cuda::kSuccess;
using cuda::Result;

StagingMap::~StagingMap() {
  Unmap();
  if (reserved_ != 0) driver_.address_free(address_, reserved_);
}

Status StagingMap::Failed(const char* call, Result code) const {
  return MakeStatus(Code::kFailedPrecondition,
                    "the daemon's staging of %llu bytes cannot be mapped: %s; epctl doctor says "
                    "what the machine offers",
                    static_cast<unsigned long long>(bytes_),
                    cuda::Describe(driver_, call, code).c_str());
}

Status StagingMap::Map(const DeviceArena& arena) {
  Unmap();
  bytes_ = arena.bytes;
  return arena.handle.empty() ? Import(arena) : Open(arena);
}

Status StagingMap::Import(const DeviceArena& arena) {
  if (!driver_.has_virtual_memory()) {
    return MakeStatus(Code::kFailedPrecondition,
                      "the driver has no virtual memory management; start epd with --staging=ipc");
  }
  if (address_ == 0) {
    const Result code = driver_.address_reserve(&address_, bytes_, 0, 0, 0);
    if (code != kSuccess) return Failed("cuMemAddressReserve", code);
    reserved_ = bytes_;
  }
  if (bytes_ > reserved_) {
    return MakeStatus(
        Code::kAborted, "the staging grew from %llu to %llu bytes; compile the program again",
        static_cast<unsigned long long>(reserved_), static_cast<unsigned long long>(bytes_));
  }
  cuda::MemoryHandle memory = 0;
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(arena.fd->get()));
  Result code = driver_.memory_import(&memory, shareable, cuda::kHandlePosixDescriptor);
  if (code != kSuccess) return Failed("cuMemImportFromShareableHandle", code);
  code = driver_.memory_map(address_, bytes_, 0, memory, 0);
  driver_.memory_release(memory);  // The mapping holds it.
  if (code != kSuccess) return Failed("cuMemMap", code);
  mapped_ = true;
  const cuda::AccessDescription access = {
      .location = {.type = cuda::kLocationDevice, .id = device_},
      .flags = own_ ? cuda::kAccessReadWrite : cuda::kAccessRead};
  code = driver_.memory_set_access(address_, bytes_, &access, 1);
  if (code != kSuccess) {
    Unmap();
    return Failed("cuMemSetAccess", code);
  }
  return {};
}

Status StagingMap::Open(const DeviceArena& arena) {
  cuda::IpcHandle handle;
  if (arena.handle.size() != sizeof handle.bytes) {
    return MakeStatus(Code::kDataLoss, "the daemon sent a memory handle of %zu bytes, expected %zu",
                      arena.handle.size(), sizeof handle.bytes);
  }
  std::memcpy(handle.bytes, arena.handle.data(), sizeof handle.bytes);
  cuda::DevicePointer opened = 0;
  const Result code = driver_.ipc_open_handle(&opened, handle, cuda::kIpcLazyPeerAccess);
  if (code != kSuccess) return Failed("cuIpcOpenMemHandle", code);
  if (address_ != 0 && opened != address_) {
    driver_.ipc_close_handle(opened);
    return MakeStatus(Code::kAborted,
                      "the new worker's staging, opened by handle, came to another address than "
                      "the programs of this process know; compile them again (memory shared as "
                      "descriptors, --staging=vmm, keeps its address)");
  }
  address_ = opened;
  mapped_ = true;
  return {};
}

void StagingMap::Unmap() {
  if (!mapped_) return;
  mapped_ = false;
  if (reserved_ != 0) {
    driver_.memory_unmap(address_, bytes_);
  } else {
    driver_.ipc_close_handle(address_);
  }
}

}  // namespace epd::client
