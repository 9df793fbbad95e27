// Shared memory whose pages come into being as they are used.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace epd {

// Makes the pages of a mapped range [first, end) that are not there yet. Without it the kernel makes each at the first access, and has no
// other answer than SIGBUS where it may make none (memory of the cgroup, the commit limit of vm.overcommit_memory=2): that
// would end a process for what somebody else has left untouched. A kernel before Linux 5.14 cannot say beforehand: then OK.
//   RESOURCE_EXHAUSTED  there is no memory for them, or the file is shorter
absl::Status MakePages(const void* first, const void* end);

// Makes the pages of [begin, begin + bytes), whole ones of a mapping. Unlike fallocate it does not wait for the file's lock, which
// anybody who writes to the file may hold. 0, or an errno: ENOSPC where an access would be a SIGBUS, EINVAL before Linux 5.14.
int PopulatePages(void* begin, size_t bytes);

}  // namespace epd
