#include "daemon/backend/nccl_ep/nccl_ep_table.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/backend/nccl_ep/nccl_ep_library.h"

namespace epd::nccl_ep {
namespace {

template <typename F>
void Bind(void* handle, const char* symbol, F*& function, std::vector<std::string>& lacking) {
  function = reinterpret_cast<F*>(dlsym(handle, symbol));
  if (function == nullptr) lacking.push_back(symbol);
}

std::vector<std::string> BindAll(void* handle, Table& t) {
  std::vector<std::string> lacking;
  Bind(handle, "ncclEpGetVersion", t.get_version, lacking);
  Bind(handle, "ncclEpCreateGroup", t.create_group, lacking);
  Bind(handle, "ncclEpGroupDestroy", t.destroy_group, lacking);
  Bind(handle, "ncclEpInitHandle", t.init_handle, lacking);
  Bind(handle, "ncclEpHandleDestroy", t.destroy_handle, lacking);
  Bind(handle, "ncclEpUpdateHandle", t.update_handle, lacking);
  Bind(handle, "ncclEpDispatch", t.dispatch, lacking);
  Bind(handle, "ncclEpCombine", t.combine, lacking);
  return lacking;
}

}  // namespace

Loaded Load(const std::vector<std::string>& candidates) {
  const NcclEpLibrary library = OpenNcclEp(candidates);
  Loaded loaded;
  loaded.path = library.path;
  loaded.version = library.version;
  loaded.problem = library.problem;
  if (!loaded.ok()) return loaded;
  // It is open already.
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    loaded.problem = why == nullptr ? absl::StrCat(library.path, " cannot be opened") : why;
    return loaded;
  }
  const std::vector<std::string> lacking = BindAll(handle, loaded.table);
  if (!lacking.empty()) {
    loaded.problem = absl::StrCat(library.path, " lacks ", absl::StrJoin(lacking, ", "));
  }
  return loaded;
}

}  // namespace epd::nccl_ep
