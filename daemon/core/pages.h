// Shared memory whose pages come into being as they are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {

// Makes the pages of a mapped range that are not there yet. Without it the kernel makes each at the first access, and has no
// other answer than SIGBUS where it may make none (memory of the cgroup, the commit limit of vm.overcommit_memory=2): that
// would end a process for what somebody else has left untouched. A kernel before Linux 5.14 cannot say beforehand: then OK.
//   RESOURCE_EXHAUSTED  there is no memory for them, or the file is shorter
absl::Status MakePages(void* first, size_t bytes);

// Those of the words of a group of 64 slots. Where there is no memory for them, none of its slots was ever armed.
absl::Status MakePagesOfWords(const shm::SlotsView& slots, uint32_t group);

// That of a slot: a client can arm one to which it has never written.
absl::Status MakePageOfSlot(const shm::SlotsView& slots, uint32_t slot);

}  // namespace epd
