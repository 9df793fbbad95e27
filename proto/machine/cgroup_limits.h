// Which limits of control groups count for this process: of its own group and of all groups above it, cgroup v1 and v2.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace epd {

// A file's text; nothing where it cannot be read. Tests give a tree of their own.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

// The machine's files.
std::optional<std::string> ReadMachineFile(const std::string& path);

// One that is set.
struct CgroupLimit {
  uint64_t limit = 0;
  uint64_t used =
      0;  // By the group and those below it. Of memory without the pages of files, which the kernel can drop.
  std::string file;  // Where it stands: "/sys/fs/cgroup/job/memory.max".

  uint64_t room() const { return limit > used ? limit - used : 0; }
};

// Pure: read from /proc/self/cgroup and /proc/self/mountinfo, and from the groups' folders, in `read`. Innermost first; empty: no
// limit, or none that can be seen. A group that lies above what is mounted here (a container's) is seen in cgroup v1 only, by
// what the kernel adds up.
std::vector<CgroupLimit> MemoryLimits(
    const ReadFile& read);  // In bytes: memory.max and memory.high, or memory.limit_in_bytes.
std::vector<CgroupLimit> PidsLimits(const ReadFile& read);  // In threads: pids.max.
// The machine's memory itself, by /proc/meminfo: what of it is not available, and free swap does not make up for, is in use.
std::optional<CgroupLimit> MachineMemory(const ReadFile& read);

// The one that counts; nothing: there is none.
std::optional<CgroupLimit> Lowest(const std::vector<CgroupLimit>& limits);
std::optional<CgroupLimit> LeastRoom(const std::vector<CgroupLimit>& limits);

}  // namespace epd
