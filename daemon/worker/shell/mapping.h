// A shared segment of epd's, mapped for as long as the object lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"

namespace epd {

class Mapping {
 public:
  // Maps all of `fd` read-write; children do not inherit it.
  //   DATA_LOSS           the segment is shorter than `min_bytes`
  //   RESOURCE_EXHAUSTED  address space
  static absl::StatusOr<Mapping> Open(const UniqueFd& fd, size_t min_bytes);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace epd
