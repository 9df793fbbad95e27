// Pages of this process that a device copies to and from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/c/status.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// Whole pages of its own, registered: drivers register whole pages and refuse one that is registered already, as that of
// another rank's vector may be. To be made and dropped with the device's context current and nothing pending in its
// streams. The driver outlives it.
class HostPages {
 public:
  //   RESOURCE_EXHAUSTED   there are no pages
  //   FAILED_PRECONDITION  the driver refuses them
  static Status Make(const cuda::DriverTable& driver, size_t bytes,
                     std::unique_ptr<HostPages>* out);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(pages_); }
  size_t bytes() const { return bytes_; }
  cuda::DevicePointer on_device() const { return on_device_; }

 private:
  HostPages(const cuda::DriverTable& driver, void* pages, size_t bytes)
      : driver_(driver), pages_(pages), bytes_(bytes) {}

  const cuda::DriverTable& driver_;
  void* const pages_;
  const size_t bytes_;
  bool registered_ = false;
  cuda::DevicePointer on_device_ = 0;
};

}  // namespace epd::client
