#include "daemon/backend/nccl_ep/nccl_ep_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/backend/wheel_files.h"
#include "daemon/core/nccl_version.h"

namespace epd {
namespace {

constexpr char kFileName[] = "libnccl_ep.so";
constexpr char kInWheel[] = "nccl/ep/lib/cu1[0-9]/libnccl_ep.so";

using GetVersion = int (*)(int* version);

bool IsProgram(const std::string& path) {
  struct stat entry;
  return stat(path.c_str(), &entry) == 0 && S_ISREG(entry.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void AskVersion(void* handle, NcclEpLibrary& library) {
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(handle, "ncclEpGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    library.problem =
        absl::StrCat(library.path, " is no NCCL EP: ncclEpGetVersion is missing or fails");
    return;
  }
  library.version = version;
  if (version >= kNcclEpOldest) return;
  library.problem =
      absl::StrCat(library.path, " is NCCL EP ", NcclVersionText(version),
                   ", expected 0.2.0 or newer, as the wheel nccl-extensions 0.1.0 has it");
}

}  // namespace

std::vector<std::string> NcclEpCandidates(const std::string& self) {
  if (std::string given = FromEnvironment("EPD_LIBNCCL_EP"); !given.empty()) {
    return {std::move(given)};
  }
  std::vector<std::string> paths = WheelFiles(self, kFileName, kInWheel);
  paths.emplace_back(kFileName);
  std::reverse(paths.begin(), paths.end());
  return paths;
}

NcclEpLibrary OpenNcclEp(const std::vector<std::string>& candidates) {
  NcclEpLibrary library;
  for (const std::string& path : candidates) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      absl::StrAppend(&library.problem, library.problem.empty() ? "" : "; ",
                      why == nullptr ? path : why);
      continue;
    }
    library.problem.clear();
    link_map* map = nullptr;
    library.path =
        dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : path;
    AskVersion(handle, library);
    return library;
  }
  return library;
}

std::string FindNvcc() {
  for (const char* name : {"NCCL_EP_JIT_NVCC", "NVCC"}) {
    if (const std::string path = FromEnvironment(name); IsProgram(path)) return path;
  }
  if (const std::string home = FromEnvironment("CUDA_HOME"); !home.empty()) {
    if (const std::string path = absl::StrCat(home, "/bin/nvcc"); IsProgram(path)) return path;
  }
  const std::string path_list = FromEnvironment("PATH");
  for (const absl::string_view folder : absl::StrSplit(path_list, ':', absl::SkipEmpty())) {
    if (const std::string path = absl::StrCat(folder, "/nvcc"); IsProgram(path)) return path;
  }
  return "";
}

}  // namespace epd
