#include "daemon/shared_memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd {

absl::Status MakePages(const void* first, const void* end) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(first) / page * page;
  const uintptr_t bytes = reinterpret_cast<uintptr_t>(end) - begin;
  const int error = PopulatePages(reinterpret_cast<void*>(begin), bytes);
  if (error == 0 || error == EINVAL) return absl::OkStatus();
  const char* why = error == ENOSPC ? "the kernel gives none" : std::strerror(error);
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", bytes, " bytes of a shared segment: ", why));
}

int PopulatePages(void* begin, size_t bytes) {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  return errno == EFAULT ? ENOSPC : errno;
}

}  // namespace epd
