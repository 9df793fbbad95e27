// What the kernel says a process is doing.
#pragma once

namespace epd {

// Whether the process's first thread is in an uninterruptible sleep, as who waits for a page or a disk is. False, too, where there
// is no such process.
bool WaitsInKernel(int pid);

}  // namespace epd
