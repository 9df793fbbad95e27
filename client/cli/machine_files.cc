#include "client/cli/machine_files.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace epd::cli {
namespace {

constexpr size_t kMaxFile = 64 << 10;
constexpr size_t kMaxLog = 1 << 20;

// A control character would be a JSON escape, a byte that is no UTF-8 no JSON at all.
std::string Cleaned(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte >= 0x7f) c = '?';
  }
  return text;
}

void AddPart(const std::string& what, const std::string& problem, SupportArchive& archive) {
  SupportArchive::Part& part = *archive.add_parts();
  part.set_what(what);
  part.set_ok(problem.empty());
  part.set_problem(problem);
}

void AddText(const std::string& what, std::string text, size_t max, SupportArchive& archive) {
  SupportArchive::File& file = *archive.add_files();
  file.set_path(what);
  file.set_cut(text.size() > max);
  if (text.size() > max) text.erase(0, text.size() - max);
  file.set_text(Cleaned(std::move(text)));
  AddPart(what, "", archive);
}

// Files of /proc and /sys say nothing of their size; of a long log only the end is read.
void AddFile(const std::string& path, size_t max, SupportArchive& archive) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown))
    return AddPart(path, unknown ? unknown.message() : "it is no file", archive);
  std::ifstream file(path, std::ios::binary);
  if (!file) return AddPart(path, std::strerror(errno), archive);
  const uintmax_t size = std::filesystem::file_size(path, unknown);
  if (!unknown && size > max + 1) file.seekg(static_cast<std::streamoff>(size - max - 1));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return AddPart(path, "it cannot be read", archive);
  AddText(path, text.str(), max, archive);
}

void AddFolder(const std::string& path, SupportArchive& archive) {
  std::error_code problem;
  std::string names;
  for (std::filesystem::directory_iterator it(path, problem), end; !problem && it != end;
       it.increment(problem)) {
    absl::StrAppend(&names, it->path().filename().string(), "\n");
  }
  if (problem) return AddPart(path, problem.message(), archive);
  AddText(path, names, kMaxFile, archive);
}

void AddShm(SupportArchive& archive) {
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) != 0) return AddPart("/dev/shm", std::strerror(errno), archive);
  AddText("/dev/shm",
          absl::StrCat("size_bytes=", shm.f_blocks * shm.f_frsize,
                       " free_bytes=", shm.f_bavail * shm.f_frsize, "\n"),
          kMaxFile, archive);
}

void AddCgroup(SupportArchive& archive) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !fields[1].empty()) continue;  // Of version 2.
    const std::string folder = absl::StrCat("/sys/fs/cgroup", fields[2]);
    for (const char* name : {"memory.max", "memory.current", "memory.events", "cpu.max", "cpu.stat",
                             "cpuset.cpus.effective", "pids.max"}) {
      AddFile(absl::StrCat(folder, folder.back() == '/' ? "" : "/", name), kMaxFile, archive);
    }
  }
}

std::string CommandOf(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

std::vector<int> FindEpdProcesses() {
  std::vector<int> pids;
  std::error_code problem;
  for (std::filesystem::directory_iterator it("/proc", problem), end; !problem && it != end;
       it.increment(problem)) {
    int pid = 0;
    const std::string name = it->path().filename().string();
    if (!absl::SimpleAtoi(name, &pid)) continue;
    const std::string command = CommandOf(name);
    if (command == "epd" || command == "epd-worker") pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

void AddMachineFiles(const std::vector<int>& pids, const std::string& log,
                     SupportArchive& archive) {
  for (const char* path :
       {"/proc/version", "/proc/cmdline", "/proc/loadavg", "/proc/meminfo", "/proc/self/limits",
        "/proc/self/cgroup", "/proc/pressure/cpu", "/proc/pressure/memory",
        "/proc/sys/kernel/osrelease", "/proc/sys/vm/overcommit_memory",
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled", "/sys/devices/system/node/online",
        "/sys/devices/system/cpu/online", "/proc/driver/nvidia/version", "/etc/os-release"}) {
    AddFile(path, kMaxFile, archive);
  }
  AddShm(archive);
  AddCgroup(archive);
  AddFolder("/sys/class/infiniband", archive);
  AddFolder("/sys/class/net", archive);
  for (const int pid : pids) {
    for (const char* name : {"status", "limits", "cgroup", "wchan", "sched"})
      AddFile(absl::StrCat("/proc/", pid, "/", name), kMaxFile, archive);
  }
  if (!log.empty()) AddFile(log, kMaxLog, archive);
}

}  // namespace epd::cli
