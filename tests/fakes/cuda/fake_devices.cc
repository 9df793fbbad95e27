// Devices and contexts of the fake driver.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda/fake_call.h"

namespace epd::cuda {
namespace {

constexpr Result kDeviceUnavailable = 46;  // CUDA_ERROR_DEVICE_UNAVAILABLE

}  // namespace

Device& FakeDriver::CurrentDevice() {
  static thread_local Device device = 0;
  return device;
}

void FakeDriver::FillTable() {
  EPD_FAKE_CALL(init, "cuInit", kFree, (unsigned), {
    d.initialised_ = d.machine_.num_devices > 0;
    return d.initialised_ ? kSuccess : kNoDevice;
  });
  EPD_FAKE_CALL(driver_get_version, "cuDriverGetVersion", kFree, (int* version), {
    *version = d.machine_.driver_version;
    return kSuccess;
  });
  table_.get_error_name = +[](Result code, const char** name) -> Result {
    *name = code == kOutOfMemory         ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == kNotSupported      ? "CUDA_ERROR_NOT_SUPPORTED"
            : code == kNoDevice          ? "CUDA_ERROR_NO_DEVICE"
            : code == kNotPermitted      ? "CUDA_ERROR_NOT_PERMITTED"
            : code == kIllegalAddress    ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : code == kInvalidValue      ? "CUDA_ERROR_INVALID_VALUE"
            : code == kDeviceUnavailable ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
                                         : nullptr;
    return *name == nullptr ? kInvalidValue : kSuccess;
  };
  symbols_["cuGetErrorName"] = reinterpret_cast<void*>(table_.get_error_name);
  EPD_FAKE_CALL(device_get_count, "cuDeviceGetCount", kFree, (int* count), {
    *count = d.NumShown();
    return kSuccess;
  });
  EPD_FAKE_CALL(device_get, "cuDeviceGet", kFree, (Device * device, int ordinal), {
    *device = ordinal;
    return ordinal < d.NumShown() ? kSuccess : kInvalidDevice;
  });
  EPD_FAKE_CALL(device_get_name, "cuDeviceGetName", kFree, (char* name, int bytes, Device device), {
    std::snprintf(name, static_cast<size_t>(bytes), "Fake GPU %d%s", d.MachineNumber(device),
                  d.machine_.mig ? " MIG 1g.10gb" : "");
    return kSuccess;
  });
  EPD_FAKE_CALL(device_get_uuid, "cuDeviceGetUuid", kFree, (Uuid * uuid, Device device), {
    std::memset(uuid->bytes, d.MachineNumber(device) + 1, sizeof uuid->bytes);
    return kSuccess;
  });
  EPD_FAKE_CALL(
      device_get_attribute, "cuDeviceGetAttribute", kFree, (int* value, int attribute, Device), {
        const FakeMachine& m = d.machine_;
        const std::map<int, int> known = {{kAttributeMultiprocessors, m.multiprocessors},
                                          {kAttributeComputeMode, m.compute_mode},
                                          {kAttributeComputeMajor, m.compute_major},
                                          {kAttributeComputeMinor, m.compute_minor},
                                          {kAttributeMaxSharedBytesOptIn, m.max_shared_bytes},
                                          {kAttributeVirtualMemory, m.virtual_memory},
                                          {kAttributePosixDescriptors, m.posix_descriptors},
                                          {kAttributeRdmaWithVirtualMemory, m.rdma},
                                          {kAttributeFabricHandles, 0},
                                          {kAttributeMps, m.mps}};
        const auto found = known.find(attribute);
        if (found == known.end()) return kInvalidValue;
        *value = found->second;
        return kSuccess;
      });
  EPD_FAKE_CALL(device_total_memory, "cuDeviceTotalMem", kFree, (size_t * bytes, Device), {
    *bytes = d.machine_.device_bytes;
    return kSuccess;
  });
  EPD_FAKE_CALL(device_can_access_peer, "cuDeviceCanAccessPeer", kFree,
                (int* can, Device device, Device peer), {
                  const bool may =
                      d.machine_.CanAccess(d.MachineNumber(device), d.MachineNumber(peer));
                  *can = device != peer && may ? 1 : 0;
                  return kSuccess;
                });
  EPD_FAKE_CALL(primary_context_retain, "cuDevicePrimaryCtxRetain", kMayBlock,
                (Context * context, Device device), {
                  const int number = d.MachineNumber(device);
                  if (d.machine_.compute_mode == kComputeModeProhibited ||
                      (d.retain_hook_ && !d.retain_hook_(number))) {
                    return kDeviceUnavailable;
                  }
                  ++d.retained_;
                  d.device_ = number;
                  *context = reinterpret_cast<Context>(static_cast<uintptr_t>(number) + 1);
                  return kSuccess;
                });
  EPD_FAKE_CALL(primary_context_release, "cuDevicePrimaryCtxRelease", kTakesAway | kMayBlock,
                (Device), {
                  --d.retained_;
                  return kSuccess;
                });
  EPD_FAKE_CALL(context_set_current, "cuCtxSetCurrent", kFree, (Context context), {
    d.current_ = context != nullptr;
    if (context != nullptr) {
      CurrentDevice() = static_cast<Device>(reinterpret_cast<uintptr_t>(context)) - 1;
    }
    return kSuccess;
  });
  EPD_FAKE_CALL(memory_get_free, "cuMemGetInfo", kNeedsContext, (size_t * free, size_t * total), {
    *free = d.machine_.device_bytes - d.used_bytes_;
    *total = d.machine_.device_bytes;
    return kSuccess;
  });
}

}  // namespace epd::cuda
