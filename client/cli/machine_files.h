// What the kernel says of this machine and of the processes that epd runs here.
#pragma once

#include <string>
#include <vector>

#include "client/cli/support_archive.pb.h"

namespace epd::cli {

// Reads limits, cgroup, memory, NUMA, /dev/shm, GPUs, fabrics, and of each of `pids` what it waits for; the end of `log` ("": none). What
// is not there, or not for this user, is left out and said in `archive.parts`. Never reads an environment or a process' memory. Reads files only,
// so it does not wait for anybody.
void AddMachineFiles(const std::vector<int>& pids, const std::string& log, SupportArchive& archive);

// epd and its workers, as far as /proc shows them.
std::vector<int> FindEpdProcesses();

}  // namespace epd::cli
