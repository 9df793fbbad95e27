// A shared mapping of a descriptor that somebody sent us.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

#include "client/c/status.h"

namespace epd::client {

// Unmaps itself. Never inherited by a forked child (MADV_DONTFORK): the child would read memory
// whose session it does not hold.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Maps `bytes` of `fd`, whose size must be at least that and sealed against shrinking: otherwise
  // its owner could make us fault.
  //   DATA_LOSS           the descriptor is shorter than announced, or may shrink
  //   RESOURCE_EXHAUSTED  no address space
  static Status Map(int fd, uint64_t bytes, bool writable, Mapping* mapping);

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace epd::client
