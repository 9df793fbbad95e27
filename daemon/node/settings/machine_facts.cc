#include <sys/sysinfo.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "daemon/node/process.h"
#include "daemon/node/settings/settings.h"
#include "proto/epd/v1/private_folder.h"

namespace epd {
namespace {

// A user's own is for that user; whoever starts one as root means the node's.
std::string RuntimeDir() {
  return geteuid() == 0 ? kNodeFolder : PrivateFolder::OfThisProcess().path();
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
