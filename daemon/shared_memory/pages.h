// Shared memory whose pages come into being as they are used.
#pragma once

#include "absl/status/status.h"

namespace epd {

// Makes the pages of a mapped range [first, end) that are not there yet. Without it the kernel makes each at the first access, and has no
// other answer than SIGBUS where it may make none (memory of the cgroup, the commit limit of vm.overcommit_memory=2): that
// would end a process for what somebody else has left untouched. A kernel before Linux 5.14 cannot say beforehand: then OK.
//   RESOURCE_EXHAUSTED  there is no memory for them, or the file is shorter
absl::Status MakePages(const void* first, const void* end);

}  // namespace epd
