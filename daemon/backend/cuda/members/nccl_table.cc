#include "daemon/backend/cuda/members/nccl_table.h"

#include <dlfcn.h>
#include <link.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd::cuda {
namespace {

// The first with a non-blocking initialisation that takes the config above.
constexpr int kOldestVersion = 21800;

std::string PathOf(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

template <typename F>
void Bind(void* handle, const char* symbol, F*& function, std::vector<std::string>& lacking) {
  function = reinterpret_cast<F*>(dlsym(handle, symbol));
  if (function == nullptr) lacking.push_back(symbol);
}

std::vector<std::string> BindAll(void* handle, NcclTable& t) {
  std::vector<std::string> lacking;
  Bind(handle, "ncclGetVersion", t.get_version, lacking);
  Bind(handle, "ncclGetErrorString", t.get_error_string, lacking);
  Bind(handle, "ncclCommInitRankConfig", t.init_rank, lacking);
  Bind(handle, "ncclCommGetAsyncError", t.get_async_error, lacking);
  Bind(handle, "ncclCommSplit", t.split, lacking);
  Bind(handle, "ncclCommFinalize", t.finalize, lacking);
  Bind(handle, "ncclCommDestroy", t.destroy, lacking);
  Bind(handle, "ncclCommAbort", t.abort, lacking);
  Bind(handle, "ncclGroupStart", t.group_start, lacking);
  Bind(handle, "ncclGroupEnd", t.group_end, lacking);
  Bind(handle, "ncclSend", t.send, lacking);
  Bind(handle, "ncclRecv", t.receive, lacking);
  return lacking;
}

}  // namespace

LoadedNccl LoadNccl(const std::string& path) {
  LoadedNccl nccl;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    nccl.problem = why == nullptr ? absl::StrCat(path, " cannot be opened") : why;
    return nccl;
  }
  nccl.path = PathOf(handle);
  const std::vector<std::string> lacking = BindAll(handle, nccl.table);
  if (!lacking.empty()) {
    nccl.problem = absl::StrCat(nccl.path, " lacks ", absl::StrJoin(lacking, ", "));
  } else if (nccl.table.get_version(&nccl.version) != kNcclSuccess) {
    nccl.problem = absl::StrCat(nccl.path, ": ncclGetVersion fails");
  } else if (nccl.version < kOldestVersion) {
    nccl.problem = absl::StrCat(nccl.path, " is version ", nccl.version, ", older than 2.18");
  }
  return nccl;
}

}  // namespace epd::cuda
