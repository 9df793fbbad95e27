#include "daemon/backend/nccl_ep/nccl_ep_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/backend/wheel_files.h"
#include "daemon/core/nccl_version.h"

namespace epd {
namespace {

// A build has both; a wheel that was made without links has one of them.
constexpr const char* kFileNames[] = {"libnccl_ep.so", "libnccl_ep.so.0"};
// Of a wheel's packages, the last one first.
constexpr const char* kFolders[] = {"nccl/ep/lib/", "nccl/ep/lib/cu1[0-9]/"};

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
  if (version >= kNcclEpOldest && version < kNcclEpTooNew) return;
  const bool by_header = version >= kNcclEpOldestByHeader && version < kNcclEpOldest;
  const int abi = by_header ? NcclEpHeaderAbi(library.path) : 0;
  if (abi == kNcclEpAbi) return;
  library.problem = absl::StrCat(
      library.path, " is NCCL EP ", NcclVersionText(version),
      by_header && abi == 0 ? ", and no nccl_ep.h is installed with it that says its ABI"
      : by_header           ? absl::StrCat(" with ABI ", abi)
                            : "",
      ", expected 0.2.0 or newer but below 1.0.0, as the wheel nccl-extensions 0.1.0 "
      "has it, or a build of its source with ABI ",
      kNcclEpAbi);
}

}  // namespace

int NcclEpHeaderAbi(const std::string& path) {
  std::error_code unresolved;
  const std::filesystem::path file = std::filesystem::canonical(path, unresolved);
  if (unresolved) return 0;
  for (const std::filesystem::path& place :
       {file.parent_path().parent_path(), file.parent_path().parent_path().parent_path()}) {
    std::ifstream header(place / "include/nccl_ep.h");
    for (std::string line; std::getline(header, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      int abi = 0;
      if (words.size() == 3 && words[0] == "#define" && words[1] == "NCCL_EP_API_VERSION" &&
          absl::SimpleAtoi(words[2], &abi)) {
        return abi;
      }
    }
  }
  return 0;
}

std::vector<std::string> NcclEpCandidates(const std::string& self) {
  if (std::string given = FromEnvironment("EPD_LIBNCCL_EP"); !given.empty()) {
    return {std::move(given)};
  }
  std::vector<std::string> in_wheels;
  for (const char* name : kFileNames) {
    std::vector<std::string> found;
    for (const char* folder : kFolders) {
      for (std::string& path : WheelFiles(self, name, absl::StrCat(folder, name))) {
        found.push_back(std::move(path));
      }
    }
    in_wheels.insert(in_wheels.end(), found.rbegin(), found.rend());
  }
  std::vector<std::string> paths(std::begin(kFileNames), std::end(kFileNames));
  paths.insert(paths.end(), in_wheels.begin(), in_wheels.end());
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
