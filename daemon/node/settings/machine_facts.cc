#include <sys/sysinfo.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/node/process.h"
#include "daemon/node/settings/settings.h"

namespace epd {
namespace {

// The same rule as the client library's, which looks there.
std::string RuntimeDir() {
  if (geteuid() == 0) return "/run/epd";
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && xdg[0] == '/') return absl::StrCat(xdg, "/epd");
  return absl::StrCat("/tmp/epd-", geteuid());
}

std::string BinaryDir() {
  char path[PATH_MAX];
  const ssize_t got = readlink("/proc/self/exe", path, sizeof path);
  if (got <= 0) return ".";
  const std::string whole(path, static_cast<size_t>(got));
  return whole.substr(0, whole.rfind('/'));
}

uint64_t MemoryBytes() {
  struct sysinfo machine;
  uint64_t bytes = uint64_t{4} << 30;
  if (sysinfo(&machine) == 0) bytes = uint64_t{machine.totalram} * machine.mem_unit;
  return bytes;
}

}  // namespace

MachineFacts ReadMachineFacts() {
  const char* slurm = std::getenv("SLURM_JOB_NODELIST");
  return {HostName(), RuntimeDir(), BinaryDir(), MemoryBytes(), slurm == nullptr ? "" : slurm};
}

}  // namespace epd
