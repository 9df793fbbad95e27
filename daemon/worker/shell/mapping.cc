#include "daemon/worker/shell/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/failpoint/failpoint.h"

namespace epd {

absl::StatusOr<Mapping> Mapping::Open(const UniqueFd& fd, size_t min_bytes) {
  struct stat facts = {};
  if (fstat(fd.get(), &facts) != 0 || facts.st_size < static_cast<off_t>(min_bytes)) {
    return absl::DataLossError(absl::StrCat("a segment of ", facts.st_size, " bytes, expected ",
                                            min_bytes,
                                            "; epd and epd-worker are of different builds"));
  }
  const auto bytes = static_cast<size_t>(facts.st_size);
  void* data = EPD_FAILPOINT_FAILS("worker.session.no_memory")
                   ? MAP_FAILED
                   : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mmap of a segment: ", std::strerror(errno)));
  }
  madvise(data, bytes, MADV_DONTFORK);
  Mapping mapping;
  mapping.data_ = data;
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace epd
