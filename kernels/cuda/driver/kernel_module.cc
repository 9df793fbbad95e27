#include "kernels/cuda/driver/kernel_module.h"

#include <utility>

namespace epd::cuda {
namespace {

// What a kernel gets without being asked for more.
constexpr uint32_t kPlainSharedBytes = 48 * 1024;

}  // namespace

LoadedKernels KernelModule::Load(const DriverTable& driver, const void* image) {
  LoadedKernels loaded;
  std::unique_ptr<KernelModule> module(new KernelModule(driver));
  const Result code = driver.module_load(&module->module_, image);
  if (code != kSuccess) {
    module->module_ = nullptr;
    loaded.problem = Describe(driver, "cuModuleLoadData", code) +
                     ": the kernels need compute capability 8.0 and a driver that is new enough; "
                     "epctl doctor says which";
    return loaded;
  }
  for (int i = 0; i < NumKernels(); ++i) {
    loaded.problem = module->Find(KernelAt(i));
    if (!loaded.problem.empty()) return loaded;
  }
  loaded.module = std::move(module);
  return loaded;
}

KernelModule::~KernelModule() {
  if (module_ != nullptr) driver_.module_unload(module_);
}

std::string KernelModule::Find(const KernelShape& kernel) {
  Function function = nullptr;
  Result code = driver_.module_get_function(&function, module_, kernel.name);
  if (code != kSuccess) {
    return Describe(driver_, "cuModuleGetFunction", code) + ": no kernel " + kernel.name;
  }
  // Devices before 9.0 give less, and never launch the kernels that want more.
  if (kernel.shared_bytes > kPlainSharedBytes) {
    driver_.function_set_attribute(function, kFunctionMaxDynamicSharedBytes,
                                   static_cast<int>(kernel.shared_bytes));
  }
  functions_[kernel.name] = function;
  return "";
}

Result KernelModule::Put(const LaunchList& list, Stream stream) const {
  for (const Launch& launch : list) {
    // The driver copies the argument before it returns.
    void* arguments[] = {const_cast<uint8_t*>(launch.args)};
    const Result code = driver_.launch_kernel(functions_.find(launch.function)->second, launch.grid,
                                              1, 1, launch.threads, 1, 1, launch.shared_bytes,
                                              stream, arguments, nullptr);
    if (code != kSuccess) return code;
  }
  return kSuccess;
}

}  // namespace epd::cuda
