#include "daemon/shared_memory/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "daemon/shared_memory/pages.h"

namespace epd {
namespace {

int Allocate(const FilePages& pages, int mode) {
  for (;;) {
    if (fallocate(pages.fd, mode, static_cast<off_t>(pages.offset),
                  static_cast<off_t>(pages.bytes)) == 0)
      return 0;
    if (errno != EINTR) return errno;
  }
}

int Make(const FilePages& pages) {
  void* const mapped = mmap(nullptr, pages.bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, pages.fd, static_cast<off_t>(pages.offset));
  if (mapped == MAP_FAILED) return errno;
  const int error = PopulatePages(mapped, pages.bytes);
  munmap(mapped, pages.bytes);
  return error == EINVAL ? Allocate(pages, 0) : error;
}

}  // namespace

int DoPageAction(PageAction action, const FilePages& pages) {
  if (pages.bytes == 0) return 0;
  if (action == PageAction::kMake) return Make(pages);
  return Allocate(pages, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
}

}  // namespace epd
