// What of the node's staging a process has open and mapped, as the kernel says.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace epd::testing {

struct StagingUse {
  size_t num_memfds = 0;       // That it has descriptors of or maps.
  size_t num_descriptors = 0;  // A memfd may have several.
  size_t num_mappings = 0;
  size_t num_writable = 0;  // Of the mappings.
};

// Of a process of this user's, or of anybody for root; none of one that has ended.
StagingUse StagingUseOf(pid_t pid);

}  // namespace epd::testing
