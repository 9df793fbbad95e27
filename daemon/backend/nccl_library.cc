#include "daemon/backend/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/wheel_files.h"
#include "daemon/core/nccl_version.h"

namespace epd {
namespace {

constexpr char kFileName[] = "libnccl.so.2";
constexpr char kInWheel[] = "nvidia/nccl/lib/libnccl.so.2";

std::string PathOf(void* handle) {
  struct link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

}  // namespace

std::vector<std::string> NcclCandidates(const std::string& explicit_path, const std::string& self) {
  if (!explicit_path.empty()) return {explicit_path};
  std::vector<std::string> paths = {kFileName};
  AddMatches(absl::StrCat("/usr/local/cuda*/lib64/", kFileName), paths);
  AddMatches(absl::StrCat("/usr/lib/x86_64-linux-gnu/", kFileName), paths);
  for (std::string& file : WheelFiles(self, kFileName, kInWheel)) {
    paths.push_back(std::move(file));
  }
  return paths;
}

NcclLibrary::NcclLibrary(const std::vector<std::string>& candidates) {
  for (const std::string& path : candidates) {
    if (Open(path)) {
      problem_.clear();
      return;
    }
  }
}

void NcclLibrary::Complain(const std::string& path, const std::string& why) {
  absl::StrAppend(&problem_, problem_.empty() ? "" : "; ", path, ": ", why);
}

bool NcclLibrary::Open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    Complain(path, why == nullptr ? "cannot be opened" : why);
    return false;
  }
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(handle, "ncclGetVersion"));
  const auto get_unique_id = reinterpret_cast<GetUniqueId>(dlsym(handle, "ncclGetUniqueId"));
  int code = 0;
  if (get_version == nullptr || get_unique_id == nullptr || get_version(&code) != 0) {
    Complain(path, "is no NCCL: ncclGetVersion or ncclGetUniqueId is missing or fails");
    dlclose(handle);
    return false;
  }
  handle_ = handle;
  get_unique_id_ = get_unique_id;
  get_last_error_ = reinterpret_cast<GetLastError>(dlsym(handle, "ncclGetLastError"));
  version_ = NcclVersionText(code);
  path_ = PathOf(handle);
  return true;
}

absl::StatusOr<std::string> NcclLibrary::MakeUniqueId() const {
  if (get_unique_id_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("there is no libnccl: ", problem_));
  }
  UniqueIdBytes id = {};
  const int result = get_unique_id_(&id);
  if (result != 0) {
    const char* why = get_last_error_ == nullptr ? nullptr : get_last_error_(nullptr);
    return absl::UnavailableError(absl::StrCat("ncclGetUniqueId of NCCL ", version_,
                                               " failed with ", result, why == nullptr ? "" : ": ",
                                               why == nullptr ? "" : why));
  }
  return std::string(id.internal, sizeof id.internal);
}

}  // namespace epd
