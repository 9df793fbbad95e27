#include "client/c/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/failpoint/failpoint.h"
#include "proto/machine/thread.h"

namespace epd::client {

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Status Mapping::Map(int fd, uint64_t bytes, bool writable, Mapping* mapping) {
  struct stat stat = {};
  if (fstat(fd, &stat) != 0 || bytes == 0 || stat.st_size < 0 ||
      static_cast<uint64_t>(stat.st_size) < bytes) {
    return MakeStatus(Code::kDataLoss,
                      "the daemon announced %llu bytes of shared memory and sent %lld",
                      static_cast<unsigned long long>(bytes), static_cast<long long>(stat.st_size));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MakeStatus(Code::kDataLoss,
                      "the daemon sent memory that is not sealed against shrinking");
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = EPD_FAILPOINT_FAILS("client.map.no_memory")
                   ? MAP_FAILED
                   : mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    const std::string limit = AddressSpaceLimit();
    return MakeStatus(Code::kResourceExhausted, "cannot map %llu bytes of shared memory: %s%s",
                      static_cast<unsigned long long>(bytes), std::strerror(error),
                      limit.empty()
                          ? ""
                          : ("; the address space of this process is limited (" + limit +
                             "): raise ulimit -v, or start epd with a smaller staging_bytes")
                                .c_str());
  }
  Mapping made;
  made.data_ = static_cast<std::byte*>(data);
  made.bytes_ = bytes;
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    return MakeStatus(Code::kInternal, "madvise(MADV_DONTFORK): %s", std::strerror(errno));
  }
  *mapping = std::move(made);
  return {};
}

}  // namespace epd::client
