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
  if (madvise(reinterpret_cast<void*>(begin), bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL)
    return absl::OkStatus();
  // EFAULT is what would have been a SIGBUS.
  const char* why = errno == EFAULT ? "the kernel gives none" : std::strerror(errno);
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", bytes, " bytes of a shared segment: ", why));
}

}  // namespace epd
