// A rank's staging on a device, mapped into this process at an address that stays.
#pragma once

#include <cstdint>

#include "client/c/attach_messages.h"
#include "client/c/status.h"
#include "client/c/unique_fd.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// How an arena of device memory came: a descriptor to import, or 64 bytes to open.
struct DeviceArena {
  uint64_t bytes = 0;  // Of the allocation, which is mapped whole.
  const UniqueFd* fd = nullptr;
  std::string handle;  // Empty: `fd` is meant.
};

// Captured graphs hold the address, so memory of a later worker comes to the same one. Needs the
// device's context current; not thread-safe. The driver outlives it.
class StagingMap {
 public:
  // A peer's is mapped read only where the driver can do that: not what is opened by handle.
  StagingMap(const cuda::DriverTable& driver, int device, bool own)
      : driver_(driver), device_(device), own_(own) {}
  ~StagingMap();
  StagingMap(const StagingMap&) = delete;
  StagingMap& operator=(const StagingMap&) = delete;

  // Maps `arena` in place of what is mapped. Nothing in a stream may touch the staging meanwhile.
  //   FAILED_PRECONDITION  the driver cannot import it; the text names the call
  //   ABORTED              memory opened by handle came to another address, which graphs that were
  //                        captured before do not know: compile again
  Status Map(const DeviceArena& arena);
  // Lets the memory go; the address stays reserved.
  void Unmap();

  // 0 before the first Map.
  cuda::DevicePointer address() const { return address_; }
  uint64_t bytes() const { return mapped_ ? bytes_ : 0; }

 private:
  Status Import(const DeviceArena& arena);
  Status Open(const DeviceArena& arena);
  Status Failed(const char* call, cuda::Result code) const;

  const cuda::DriverTable& driver_;
  const int device_;
  const bool own_;
  cuda::DevicePointer address_ = 0;
  uint64_t reserved_ = 0;  // Bytes of address space; 0: the memory was opened by handle.
  uint64_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace epd::client
