// What a private daemon does not take over from the process that happens to start it.
#pragma once

#include <string>
#include <vector>

namespace epd::client {

// The environment of a private daemon: `environment` (entries NAME=VALUE, ended by a null pointer) without what is meant for the process that
// starts it. Left out: what is loaded into programs and how they allocate (LD_PRELOAD, LD_AUDIT, LD_DEBUG*, LD_PROFILE*, LD_BIND_*,
// GLIBC_TUNABLES, MALLOC_*, TCMALLOC_*), a service manager's sockets and words (NOTIFY_SOCKET, WATCHDOG_*, LISTEN_*,
// MAINPID, INVOCATION_ID, JOURNAL_STREAM) and the trace that it is part of (TRACEPARENT, TRACESTATE). LD_LIBRARY_PATH stays: NCCL is found by it.
std::vector<std::string> CleanEnvironment(const char* const* environment);

// Between fork and exec; makes only calls that are allowed there. This process then has all CPUs and all NUMA nodes, the usual scheduling (nice 0),
// I/O priority and oom_score_adj 0, and each limit of a process as high as its user may have it. What its user may not change
// is said in one line each to `log_fd`.
void StartClean(int log_fd);

}  // namespace epd::client
