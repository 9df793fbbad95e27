// Makes fresh output memory cheap to write for the first time.
#pragma once

#include <cstddef>

namespace epd {

// Asks for huge pages where `bytes` of anonymous memory at `memory` hold whole ones and nobody has
// touched them yet. Page faults dominate writes into fresh memory; where transparent huge pages are
// on or at "madvise", a copy into a fresh buffer took (EPYC, 2 cores, in steady state):
//
//             small pages   prepared
//      8 MB        4-8 ms   0.4 ms aligned to 2 MB, else 1.8 ms
//    160 MB      80-95 ms   18-30 ms
//    480 MB    310-990 ms   82-210 ms
//
// The first time a process takes so many huge pages can be slower than small ones (480 MB: 0.4 to
// 1.1 s once), because the kernel has to make them first; it pays where outputs come back each
// step. Call it before a Pull whose output was just allocated; on memory in use it costs a system
// call and changes nothing. Contents stay as they are. Small buffers and kernels without huge pages
// are left alone: this is advice and cannot fail. (MADV_POPULATE_WRITE gained nothing beyond this,
// and streamed stores lost on fresh and on cached memory, so neither is used.)
void PrepareOutput(void* memory, std::size_t bytes);

}  // namespace epd
