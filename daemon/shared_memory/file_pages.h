// Pages of files that other processes have, too.
#pragma once

#include <cstdint>

namespace epd {

// [offset, offset + bytes) of a memfd, whole pages.
struct FilePages {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum class PageAction : uint32_t {
  kMake = 1,      // Touching them cannot fail then.
  kGiveBack = 2,  // To the system; they read as zeros then, whoever maps them.
};

// 0, or an errno; ENOSPC: there is no memory for them. Giving back waits for the file's lock, which anybody who can write to it holds
// for as long as a write() of his takes: for ever, where the memory that he writes from never comes. Making waits for it
// only before Linux 5.14.
int DoPageAction(PageAction action, const FilePages& pages);

}  // namespace epd
