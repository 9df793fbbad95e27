// The CUDA driver for the GPU tests: functions out of libcuda.so.1, opened when asked for.
//
// Programs here link no CUDA library, so they start everywhere and say themselves what is missing.
#pragma once

#include <cuda.h>

#include <string>

namespace epd::gpu {

// X(name here, exported name)
#define EPD_GPU_DRIVER_FUNCTIONS(X)                                     \
  X(Init, cuInit)                                                       \
  X(DriverGetVersion, cuDriverGetVersion)                               \
  X(GetErrorName, cuGetErrorName)                                       \
  X(DeviceGetCount, cuDeviceGetCount)                                   \
  X(DeviceGet, cuDeviceGet)                                             \
  X(DeviceGetName, cuDeviceGetName)                                     \
  X(DeviceGetAttribute, cuDeviceGetAttribute)                           \
  X(DeviceCanAccessPeer, cuDeviceCanAccessPeer)                         \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                   \
  X(CtxSetCurrent, cuCtxSetCurrent)                                     \
  X(CtxSynchronize, cuCtxSynchronize)                                   \
  X(CtxEnablePeerAccess, cuCtxEnablePeerAccess)                         \
  X(ModuleLoadData, cuModuleLoadData)                                   \
  X(ModuleGetFunction, cuModuleGetFunction)                             \
  X(FuncSetAttribute, cuFuncSetAttribute)                               \
  X(LaunchKernel, cuLaunchKernel)                                       \
  X(MemAlloc, cuMemAlloc_v2)                                            \
  X(MemAllocManaged, cuMemAllocManaged)                                 \
  X(MemFree, cuMemFree_v2)                                              \
  X(MemsetD8, cuMemsetD8_v2)                                            \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                              \
  X(MemcpyPeerAsync, cuMemcpyPeerAsync)                                 \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                              \
  X(MemcpyDtoH, cuMemcpyDtoH_v2)                                        \
  X(MemcpyHtoD, cuMemcpyHtoD_v2)                                        \
  X(MemGetInfo, cuMemGetInfo_v2)                                        \
  X(MemHostRegister, cuMemHostRegister_v2)                              \
  X(MemHostUnregister, cuMemHostUnregister)                             \
  X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)              \
  X(StreamCreate, cuStreamCreate)                                       \
  X(StreamSynchronize, cuStreamSynchronize)                             \
  X(StreamQuery, cuStreamQuery)                                         \
  X(StreamIsCapturing, cuStreamIsCapturing)                             \
  X(StreamWriteValue32, cuStreamWriteValue32_v2)                        \
  X(StreamWaitValue32, cuStreamWaitValue32_v2)                          \
  X(StreamBatchMemOp, cuStreamBatchMemOp_v2)                            \
  X(StreamBeginCapture, cuStreamBeginCapture_v2)                        \
  X(StreamEndCapture, cuStreamEndCapture)                               \
  X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
  X(GraphInstantiate, cuGraphInstantiateWithFlags)                      \
  X(GraphLaunch, cuGraphLaunch)                                         \
  X(EventCreate, cuEventCreate)                                         \
  X(EventRecord, cuEventRecord)                                         \
  X(EventRecordWithFlags, cuEventRecordWithFlags)                       \
  X(EventSynchronize, cuEventSynchronize)                               \
  X(EventElapsedTime, cuEventElapsedTime_v2)                            \
  X(MemCreate, cuMemCreate)                                             \
  X(MemRelease, cuMemRelease)                                           \
  X(MemGetAllocationGranularity, cuMemGetAllocationGranularity)         \
  X(MemAddressReserve, cuMemAddressReserve)                             \
  X(MemMap, cuMemMap)                                                   \
  X(MemUnmap, cuMemUnmap)                                               \
  X(MemSetAccess, cuMemSetAccess)                                       \
  X(MemExportToShareableHandle, cuMemExportToShareableHandle)           \
  X(MemImportFromShareableHandle, cuMemImportFromShareableHandle)

struct Driver {
#define EPD_GPU_DRIVER_FIELD(name, exported) decltype(&exported) name = nullptr;
  EPD_GPU_DRIVER_FUNCTIONS(EPD_GPU_DRIVER_FIELD)
#undef EPD_GPU_DRIVER_FIELD
};

// Opens the driver and initialises it. On failure `why` says what is missing.
bool OpenDriver(Driver* driver, std::string* why);

// One device with its primary context current, and what the report says of it.
struct Device {
  CUdevice device = 0;
  CUcontext context = nullptr;
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int num_sms = 0;
  int driver_version = 0;
};
bool OpenDevice(const Driver& driver, int ordinal, Device* device, std::string* why);

// Ends the program with the driver's own name of the error: for calls that must not fail.
void Check(const Driver& driver, CUresult result, const char* what);

// Exit statuses of all programs of tests/gpu.
inline constexpr int kPassed = 0;
inline constexpr int kFailed = 1;
inline constexpr int kNoGpu = 77;

// Opens driver and device 0 or exits with kNoGpu, saying why.
void OpenOrExit(Driver* driver, Device* device);

}  // namespace epd::gpu
