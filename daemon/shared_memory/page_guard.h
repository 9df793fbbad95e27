// Shared memory of which another process may take pages away.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd {

// As long as one of a mapping stands, a page there that the kernel cannot give ends nobody: a client may punch a hole into a
// segment that it has, and where the commit limit is reached (vm.overcommit_memory=2) the next access is a SIGBUS in whose
// process it is. Then memory takes the place that holds nothing of anybody's, for the whole mapping what other processes
// write is lost, and lost() says so: its owner must end whoever has the segment. Any thread may touch the memory.
class PageGuard {
 public:
  PageGuard() = default;
  // Of a mapping that is unmapped after this has gone. [data, data + bytes) are whole pages, or what is left of the last one.
  PageGuard(void* data, size_t bytes);
  PageGuard(PageGuard&& other) noexcept;
  PageGuard& operator=(PageGuard&& other) noexcept;
  ~PageGuard();

  bool lost() const;
  // Of all of this process, ever: who sees it grow asks its own.
  static uint64_t num_lost();

 private:
  void End();

  struct Entry;
  struct Chunk;
  friend struct PageGuardTable;

  Entry* entry_ = nullptr;
};

}  // namespace epd
