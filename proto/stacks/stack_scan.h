// Frames without an unwinder: what on a thread's stack looks like an address that a call returns to.
//
// For programs with code that was made at run time (JAX), where the unwinder of GCC 12 takes a lock and allocates, which a signal's
// handler must not. Finds each frame that there is, and some of calls that have ended.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace epd::stacks {

// _dl_find_object(), which takes no lock.
using FindObject = int (*)(void*, dl_find_object*);

// Innermost first, from `stack` (the stack pointer) on, at most `max` of them. Reads the stack by a system call, so its end is no fault.
// Async-signal-safe. Nothing on other machines than x86-64 and aarch64.
size_t ScanStack(uint64_t stack, FindObject find, uint64_t* frames, size_t max);

// Whether a call instruction ends at `address`, which lies in a mapped module.
bool FollowsCall(uint64_t address, const dl_find_object& module);

}  // namespace epd::stacks
