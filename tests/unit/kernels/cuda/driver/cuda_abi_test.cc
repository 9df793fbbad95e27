// Goal: what epd declares of CUDA's and NCCL's C interfaces is what their headers say; the sizes hold
// everywhere, the rest is compared where a machine has the headers.
#include "kernels/cuda/driver/cuda_abi.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "daemon/backend/cuda/members/nccl_table.h"
#include "kernels/cuda/driver/sticky_errors.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define EPD_HAS_CUDA_HEADER 1
#endif

namespace epd::cuda {
namespace {

TEST(CudaAbi, SizesAreThoseOfTheInterface) {
  static_assert(sizeof(AllocationProperties) == 32);
  static_assert(offsetof(AllocationProperties, flags) == 24);
  static_assert(sizeof(AccessDescription) == 12);
  static_assert(sizeof(IpcHandle) == 64);
  static_assert(sizeof(BatchedOperation) == 48);
  EXPECT_EQ(sizeof(NcclConfig), 48u);
  EXPECT_EQ(offsetof(NcclConfig, blocking), 16u);
  EXPECT_EQ(offsetof(NcclConfig, net_name), 32u);
}

#ifdef EPD_HAS_CUDA_HEADER
static_assert(sizeof(CUmemAllocationProp) == sizeof(AllocationProperties));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(AllocationProperties, location));
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) ==
              offsetof(AllocationProperties, win32_handle_metadata));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(AllocationProperties, flags));
static_assert(offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) ==
              offsetof(AllocationProperties, flags.gpu_direct_rdma_capable));
static_assert(sizeof(CUmemAccessDesc) == sizeof(AccessDescription));
static_assert(sizeof(CUipcMemHandle) == sizeof(IpcHandle));
static_assert(sizeof(CUuuid) == sizeof(Uuid));
static_assert(sizeof(CUstreamBatchMemOpParams) == sizeof(BatchedOperation));
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.address) ==
              offsetof(BatchedOperation, value.address));
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.value64) ==
              offsetof(BatchedOperation, value.value));
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.flags) ==
              offsetof(BatchedOperation, value.flags));
static_assert(sizeof(CUdeviceptr) == sizeof(DevicePointer));
static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(MemoryHandle));

TEST(CudaAbi, ConstantsAreThoseOfTheHeader) {
  EXPECT_EQ(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
  EXPECT_EQ(kNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kAttributeMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(kAttributeComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  EXPECT_EQ(kAttributeComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kAttributeComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(kAttributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(kAttributePosixDescriptors,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  EXPECT_EQ(kAttributeRdmaWithVirtualMemory,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  EXPECT_EQ(kAttributeFabricHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  EXPECT_EQ(kAttributeMps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
  EXPECT_EQ(kComputeModeProhibited, CU_COMPUTEMODE_PROHIBITED);
  EXPECT_EQ(kComputeModeExclusiveProcess, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  EXPECT_EQ(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(kHandlePosixDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  EXPECT_EQ(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  EXPECT_EQ(kHostRegisterPortable, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(kHostRegisterDeviceMap, unsigned{CU_MEMHOSTREGISTER_DEVICEMAP});
  EXPECT_EQ(kStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(kEventDisableTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(kWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
  EXPECT_EQ(kWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  EXPECT_EQ(kWaitGreaterOrEqual, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
  EXPECT_EQ(kWaitEqual, unsigned{CU_STREAM_WAIT_VALUE_EQ});
  EXPECT_EQ(kWriteDefault, unsigned{CU_STREAM_WRITE_VALUE_DEFAULT});
  EXPECT_EQ(kCaptureStatusNone, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
}

TEST(CudaAbi, NoContextOutlivesItsStickyErrorsAndEachOutlivesTheOthers) {
  // Those in numbers are newer than some headers.
  const Result sticky[] = {CUDA_ERROR_DEINITIALIZED,
                           CUDA_ERROR_ECC_UNCORRECTABLE,
                           CUDA_ERROR_NVLINK_UNCORRECTABLE,
                           Result{226},
                           CUDA_ERROR_ILLEGAL_ADDRESS,
                           CUDA_ERROR_LAUNCH_TIMEOUT,
                           CUDA_ERROR_CONTEXT_IS_DESTROYED,
                           CUDA_ERROR_ASSERT,
                           CUDA_ERROR_HARDWARE_STACK_ERROR,
                           CUDA_ERROR_ILLEGAL_INSTRUCTION,
                           CUDA_ERROR_MISALIGNED_ADDRESS,
                           CUDA_ERROR_INVALID_ADDRESS_SPACE,
                           CUDA_ERROR_INVALID_PC,
                           CUDA_ERROR_LAUNCH_FAILED,
                           Result{721},
                           Result{810},
                           Result{911}};
  EXPECT_TRUE(std::equal(std::begin(sticky), std::end(sticky), std::begin(kStickyErrors),
                         std::end(kStickyErrors)));
  for (const Result code : sticky) EXPECT_TRUE(IsSticky(code)) << code;
  for (const Result code : {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_CONTEXT,
                            CUDA_ERROR_NOT_READY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_UNKNOWN}) {
    EXPECT_FALSE(IsSticky(code)) << code;
  }
}
#endif

}  // namespace
}  // namespace epd::cuda
