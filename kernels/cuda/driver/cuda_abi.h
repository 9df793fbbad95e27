// The part of the CUDA driver's C ABI that epd calls, as of CUDA 12.0: types, codes and constants.
//
// Declared here so that epd builds without CUDA's headers and links no driver. Sizes and values are
// compared with the real header where a machine has one (cuda_abi_test).
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd::cuda {

// CUresult. Only the codes that epd tells apart have a name.
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kInsufficientDriver = 35;  // Of the runtime.
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;

using Device = int;
using DevicePointer = uint64_t;  // CUdeviceptr.
using MemoryHandle = uint64_t;   // CUmemGenericAllocationHandle.
using Context = struct OpaqueContext*;
using Stream = struct OpaqueStream*;
using Event = struct OpaqueEvent*;
using Module = struct OpaqueModule*;
using Function = struct OpaqueFunction*;

// CUdevice_attribute.
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeComputeMode = 20;
inline constexpr int kAttributeComputeMajor = 75;
inline constexpr int kAttributeComputeMinor = 76;
inline constexpr int kAttributeMaxSharedBytesOptIn = 97;  // Of a block.
inline constexpr int kAttributeVirtualMemory = 102;
inline constexpr int kAttributePosixDescriptors = 103;
inline constexpr int kAttributeRdmaWithVirtualMemory = 110;
inline constexpr int kAttributeFabricHandles = 128;
inline constexpr int kAttributeMps = 133;

// CUfunction_attribute.
inline constexpr int kFunctionMaxDynamicSharedBytes = 8;

inline constexpr int kComputeModeProhibited = 2;
inline constexpr int kComputeModeExclusiveProcess = 3;

// CUmemAllocationProp and what goes into it.
inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandlePosixDescriptor = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAccessRead = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;

struct MemoryLocation {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int requested_handle_types;
  MemoryLocation location;
  void* win32_handle_metadata;
  struct {
    uint8_t compression_type;
    uint8_t gpu_direct_rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
  } flags;
};

struct AccessDescription {
  MemoryLocation location;
  int flags;
};

struct IpcHandle {
  char bytes[64];
};
inline constexpr unsigned kIpcLazyPeerAccess = 1;

inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureStatusNone = 0;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr unsigned kEventDisableTiming = 2;

// CUstreamBatchMemOpParams: a 48-byte union that begins with the operation.
inline constexpr int kWaitValue32 = 1;
inline constexpr int kWriteValue32 = 2;
inline constexpr unsigned kWaitGreaterOrEqual = 0;  // Cyclic: int32(*address - value) >= 0.
inline constexpr unsigned kWaitEqual = 1;
inline constexpr unsigned kWriteDefault = 0;  // Fenced against what the stream wrote before.
inline constexpr unsigned kMaxBatchedOperations = 255;

union BatchedOperation {
  struct {
    int operation;
    DevicePointer address;
    uint64_t value;  // Of 32-bit operations the lower half, which comes first.
    unsigned flags;
    DevicePointer alias;
  } value;
  uint64_t whole[6];
};

struct Uuid {
  char bytes[16];
};

}  // namespace epd::cuda
