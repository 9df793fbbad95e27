#include "tests/gpu/driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace epd::gpu {
namespace {

// cuEventElapsedTime has a second version from CUDA 12.8 on; older drivers export the first.
void* Find(void* library, const char* name) {
  if (void* found = dlsym(library, name)) return found;
  const std::string text = name;
  if (text == "cuEventElapsedTime_v2") return dlsym(library, "cuEventElapsedTime");
  return nullptr;
}

}  // namespace

bool OpenDriver(Driver* driver, std::string* why) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = dlerror();
    return false;
  }
#define EPD_GPU_DRIVER_LOAD(name, exported)                                          \
  driver->name = reinterpret_cast<decltype(driver->name)>(Find(library, #exported)); \
  if (driver->name == nullptr) {                                                     \
    *why = "libcuda.so.1 has no " #exported;                                         \
    return false;                                                                    \
  }
  EPD_GPU_DRIVER_FUNCTIONS(EPD_GPU_DRIVER_LOAD)
#undef EPD_GPU_DRIVER_LOAD
  const CUresult result = driver->Init(0);
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    driver->GetErrorName(result, &name);
    *why = std::string("cuInit: ") + (name != nullptr ? name : "unknown error");
    return false;
  }
  return true;
}

bool OpenDevice(const Driver& driver, int ordinal, Device* device, std::string* why) {
  if (driver.DeviceGet(&device->device, ordinal) != CUDA_SUCCESS) {
    *why = "no device " + std::to_string(ordinal);
    return false;
  }
  char name[256] = {};
  int major = 0;
  int minor = 0;
  const CUdevice d = device->device;
  Check(driver, driver.DeviceGetName(name, sizeof(name), d), "cuDeviceGetName");
  driver.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d);
  driver.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d);
  driver.DeviceGetAttribute(&device->num_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d);
  driver.DriverGetVersion(&device->driver_version);
  device->name = name;
  device->compute_capability = 10 * major + minor;
  Check(driver, driver.DevicePrimaryCtxRetain(&device->context, d), "cuDevicePrimaryCtxRetain");
  Check(driver, driver.CtxSetCurrent(device->context), "cuCtxSetCurrent");
  return true;
}

void Check(const Driver& driver, CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s (%d)\n", what, name != nullptr ? name : "unknown error", result);
  std::exit(kFailed);
}

void OpenOrExit(Driver* driver, Device* device) {
  std::string why;
  if (OpenDriver(driver, &why) && OpenDevice(*driver, 0, device, &why)) return;
  std::fprintf(stderr, "no GPU: %s\n", why.c_str());
  std::exit(kNoGpu);
}

}  // namespace epd::gpu
