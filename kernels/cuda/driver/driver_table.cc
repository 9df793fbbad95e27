#include "kernels/cuda/driver/driver_table.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <type_traits>

namespace epd::cuda {
namespace {

// cuGetProcAddress as of CUDA 12.0; `status` 0: found, 1: unknown, 2: newer than the version asked.
using GetProcAddress = Result (*)(const char* symbol, void** function, int version, uint64_t flags,
                                  int* status);
constexpr char kGetProcAddress[] = "cuGetProcAddress_v2";
// Of calls that are missing; the first few say enough.
constexpr size_t kMaxNamed = 3;

enum class Need { kAlways, kOptional };

struct Binding {
  const char* symbol;
  Need need;
  void (*store)(DriverTable& table, void* function);
};

template <auto Member>
void Store(DriverTable& table, void* function) {
  table.*Member = reinterpret_cast<std::remove_reference_t<decltype(table.*Member)>>(function);
}

using T = DriverTable;
constexpr Binding kBindings[] = {
    {"cuInit", Need::kAlways, &Store<&T::init>},
    {"cuDriverGetVersion", Need::kAlways, &Store<&T::driver_get_version>},
    {"cuGetErrorName", Need::kAlways, &Store<&T::get_error_name>},
    {"cuDeviceGetCount", Need::kAlways, &Store<&T::device_get_count>},
    {"cuDeviceGet", Need::kAlways, &Store<&T::device_get>},
    {"cuDeviceGetName", Need::kAlways, &Store<&T::device_get_name>},
    {"cuDeviceGetUuid", Need::kAlways, &Store<&T::device_get_uuid>},
    {"cuDeviceGetAttribute", Need::kAlways, &Store<&T::device_get_attribute>},
    {"cuDeviceTotalMem", Need::kAlways, &Store<&T::device_total_memory>},
    {"cuDeviceCanAccessPeer", Need::kAlways, &Store<&T::device_can_access_peer>},
    {"cuDevicePrimaryCtxRetain", Need::kAlways, &Store<&T::primary_context_retain>},
    {"cuDevicePrimaryCtxRelease", Need::kAlways, &Store<&T::primary_context_release>},
    {"cuCtxSetCurrent", Need::kAlways, &Store<&T::context_set_current>},
    {"cuMemGetInfo", Need::kAlways, &Store<&T::memory_get_free>},
    {"cuMemGetAllocationGranularity", Need::kOptional, &Store<&T::memory_granularity>},
    {"cuMemCreate", Need::kOptional, &Store<&T::memory_create>},
    {"cuMemRelease", Need::kOptional, &Store<&T::memory_release>},
    {"cuMemExportToShareableHandle", Need::kOptional, &Store<&T::memory_export>},
    {"cuMemImportFromShareableHandle", Need::kOptional, &Store<&T::memory_import>},
    {"cuMemAddressReserve", Need::kOptional, &Store<&T::address_reserve>},
    {"cuMemAddressFree", Need::kOptional, &Store<&T::address_free>},
    {"cuMemMap", Need::kOptional, &Store<&T::memory_map>},
    {"cuMemUnmap", Need::kOptional, &Store<&T::memory_unmap>},
    {"cuMemSetAccess", Need::kOptional, &Store<&T::memory_set_access>},
    {"cuMemAlloc", Need::kAlways, &Store<&T::memory_allocate>},
    {"cuMemFree", Need::kAlways, &Store<&T::memory_free>},
    {"cuIpcGetMemHandle", Need::kAlways, &Store<&T::ipc_get_handle>},
    {"cuIpcOpenMemHandle", Need::kAlways, &Store<&T::ipc_open_handle>},
    {"cuIpcCloseMemHandle", Need::kAlways, &Store<&T::ipc_close_handle>},
    {"cuMemHostRegister", Need::kAlways, &Store<&T::host_register>},
    {"cuMemHostUnregister", Need::kAlways, &Store<&T::host_unregister>},
    {"cuMemHostGetDevicePointer", Need::kAlways, &Store<&T::host_get_device_pointer>},
    {"cuStreamCreate", Need::kAlways, &Store<&T::stream_create>},
    {"cuStreamDestroy", Need::kAlways, &Store<&T::stream_destroy>},
    {"cuStreamQuery", Need::kAlways, &Store<&T::stream_query>},
    {"cuStreamIsCapturing", Need::kAlways, &Store<&T::stream_is_capturing>},
    {"cuThreadExchangeStreamCaptureMode", Need::kAlways, &Store<&T::thread_exchange_capture_mode>},
    {"cuStreamBatchMemOp", Need::kOptional, &Store<&T::stream_batch>},
    {"cuEventCreate", Need::kAlways, &Store<&T::event_create>},
    {"cuEventDestroy", Need::kAlways, &Store<&T::event_destroy>},
    {"cuEventRecord", Need::kAlways, &Store<&T::event_record>},
    {"cuEventQuery", Need::kAlways, &Store<&T::event_query>},
    {"cuMemcpyAsync", Need::kAlways, &Store<&T::copy_async>},
    {"cuMemsetD8Async", Need::kAlways, &Store<&T::fill_async>},
    {"cuModuleLoadData", Need::kAlways, &Store<&T::module_load>},
    {"cuModuleUnload", Need::kAlways, &Store<&T::module_unload>},
    {"cuModuleGetFunction", Need::kAlways, &Store<&T::module_get_function>},
    {"cuFuncSetAttribute", Need::kAlways, &Store<&T::function_set_attribute>},
    {"cuLaunchKernel", Need::kAlways, &Store<&T::launch_kernel>},
};

std::string PathOf(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

// One missing call of virtual memory management makes the others useless.
void DropHalfVirtualMemory(DriverTable& t) {
  if (t.memory_granularity != nullptr && t.memory_create != nullptr &&
      t.memory_release != nullptr && t.memory_export != nullptr && t.memory_import != nullptr &&
      t.address_reserve != nullptr && t.address_free != nullptr && t.memory_map != nullptr &&
      t.memory_unmap != nullptr && t.memory_set_access != nullptr) {
    return;
  }
  t.memory_create = nullptr;
}

void Bind(GetProcAddress get, LoadedDriver& driver) {
  std::vector<std::string> lacking;
  for (const Binding& binding : kBindings) {
    void* function = nullptr;
    int status = 0;
    const Result code = get(binding.symbol, &function, kDriverAbi, 0, &status);
    if (code == kSuccess && function != nullptr) {
      binding.store(driver.table, function);
      continue;
    }
    if (code == kStubLibrary) {
      driver.problem = driver.path + " is the CUDA toolkit's stub, and no driver (" +
                       std::to_string(kStubLibrary) + ")";
      return;
    }
    const std::string why = std::string(binding.symbol) +
                            (status == 2 ? " is newer than CUDA 12.0" : " is not in this driver");
    (binding.need == Need::kAlways ? lacking : driver.missing).push_back(why);
  }
  DropHalfVirtualMemory(driver.table);
  if (lacking.empty()) return;
  driver.problem = driver.path + ":";
  for (size_t i = 0; i < std::min(kMaxNamed, lacking.size()); ++i) {
    driver.problem += (i == 0 ? " " : ", ") + lacking[i];
  }
  if (lacking.size() > kMaxNamed) {
    driver.problem += ", and " + std::to_string(lacking.size() - kMaxNamed) + " more";
  }
}

}  // namespace

LoadedDriver LoadDriver(const std::string& name) {
  LoadedDriver driver;
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    driver.problem = why == nullptr ? name + " cannot be opened" : why;
    return driver;
  }
  driver.path = PathOf(handle);
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(handle, kGetProcAddress));
  if (get == nullptr) {
    driver.problem =
        driver.path + " has no " + kGetProcAddress + ": it is older than CUDA 12.0, or no driver";
    return driver;
  }
  Bind(get, driver);
  return driver;
}

std::string Describe(const DriverTable& table, const char* call, Result code) {
  const char* name = nullptr;
  if (table.get_error_name == nullptr || table.get_error_name(code, &name) != kSuccess ||
      name == nullptr) {
    return std::string(call) + ": error " + std::to_string(code);
  }
  return std::string(call) + ": " + name + " (" + std::to_string(code) + ")";
}

}  // namespace epd::cuda
