#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "daemon/doctor/machine_doctor.h"
#include "proto/machine/cgroup_limits.h"

namespace epd {
namespace {

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t CountDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder's own.
}

}  // namespace

MachineReport ReadMachine(const std::string& socket_path) {
  MachineReport report;
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  report.num_cores = cores > 0 ? static_cast<unsigned>(cores) : 1;
  struct sysinfo memory;
  if (sysinfo(&memory) == 0) report.memory_bytes = uint64_t{memory.totalram} * memory.mem_unit;
  std::vector<CgroupLimit> limits = MemoryLimits(&ReadMachineFile);
  if (const auto limit = Lowest(limits); limit.has_value()) {
    report.cgroup_limit_bytes = limit->limit;
    report.cgroup_used_bytes = limit->used;
    report.cgroup_file = limit->file;
  }
  if (const auto machine = MachineMemory(&ReadMachineFile); machine.has_value())
    limits.push_back(*machine);
  if (const auto least = LeastRoom(limits); least.has_value()) {
    report.least_room_bytes = least->room();
    report.least_room_file = least->file;
  }
  report.transparent_huge_pages = ReadLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) report.descriptors_limit = files.rlim_cur;
  report.descriptors_used = CountDescriptors();
  rlimit locked;
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
    report.locked_limit_bytes = locked.rlim_cur == RLIM_INFINITY ? UINT64_MAX : locked.rlim_cur;
  }
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) report.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  report.socket_folder = socket_path.substr(0, socket_path.rfind('/'));
  struct stat folder;
  if (stat(report.socket_folder.c_str(), &folder) == 0)
    report.socket_folder_mode = folder.st_mode & 07777;
  struct statvfs space;
  if (statvfs(report.socket_folder.c_str(), &space) == 0) {
    report.socket_folder_free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  }
  return report;
}

}  // namespace epd
