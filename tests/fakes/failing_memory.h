// Memory that runs out: operator new and delete of every program that this is linked into.
#pragma once

#include <cstdint>

namespace epd::testing {

// So many more allocations of this thread until one fails, after which none does; negative: none does.
extern thread_local int64_t t_allocations_left;

}  // namespace epd::testing
