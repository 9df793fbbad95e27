// How far streams are with the uses of a group's sites: words of host memory that the streams write.
//
// No call of the driver says so. One that waits for all of a context ends every capture in it, also of streams that epd has
// never seen; and in which stream a graph is replayed nobody knows. So a use that is put leaves its number behind, and one that
// is captured says in each replay that it has begun, before it asks for anything, and that it is over.
#pragma once

#include <cstdint>
#include <memory>

#include "client/c/status.h"
#include "client/cuda/host_pages.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// Of one site.
class SiteProgress {
 public:
  struct Words {
    uint32_t replaying;
    uint32_t ended;
  };

  SiteProgress() = default;
  SiteProgress(Words* words, cuda::DevicePointer on_device)
      : words_(words), on_device_(on_device) {}

  // Before the first use of a site.
  void Clear() const;
  // For a stream.
  cuda::BatchedOperation SetReplaying(bool replaying) const;
  cuda::BatchedOperation SetEnded(uint32_t number) const;
  // What streams have said.
  bool replaying() const;
  uint32_t ended() const;

 private:
  Words* words_ = nullptr;
  cuda::DevicePointer on_device_ = 0;
};

// The driver outlives it. Made and dropped as HostPages are.
class StreamProgress {
 public:
  // For sites with numbers below `num_sites`. Errors as HostPages::Make.
  static Status Make(const cuda::DriverTable& driver, uint32_t num_sites,
                     std::unique_ptr<StreamProgress>* progress);

  SiteProgress Of(int site) const;

 private:
  std::unique_ptr<HostPages> pages_;
};

}  // namespace epd::client
