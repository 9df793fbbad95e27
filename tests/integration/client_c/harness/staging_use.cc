#include "tests/integration/client_c/harness/staging_use.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace epd::testing {
namespace {

constexpr char kName[] = "/memfd:epd-staging";

}  // namespace

StagingUse StagingUseOf(pid_t pid) {
  StagingUse use;
  std::set<std::string> inodes;
  const std::string process = "/proc/" + std::to_string(pid);
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kName) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string addresses, modes, offset, device, inode;
    fields >> addresses >> modes >> offset >> device >> inode;
    ++use.num_mappings;
    if (modes.find('w') != std::string::npos) ++use.num_writable;
    inodes.insert(inode);
  }
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator(process + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(fd.path(), gone);
    struct stat facts = {};
    if (target.rfind(kName, 0) != 0 || stat(fd.path().c_str(), &facts) != 0) continue;
    ++use.num_descriptors;
    inodes.insert(std::to_string(facts.st_ino));
  }
  use.num_memfds = inodes.size();
  return use;
}

}  // namespace epd::testing
