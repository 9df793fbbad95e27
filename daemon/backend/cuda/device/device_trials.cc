#include "daemon/backend/cuda/device/device_trials.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/cuda/driver/device_words.h"

namespace epd::cuda {
namespace {

constexpr absl::Duration kWaitLimit = absl::Seconds(2);
constexpr size_t kTrialBytes = size_t{1} << 20;

// True once the stream has run dry.
bool RunsDry(const DriverTable& driver, Stream stream, Result* code) {
  const absl::Time deadline = absl::Now() + kWaitLimit;
  while ((*code = driver.stream_query(stream)) == kNotReady && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return *code == kSuccess;
}

// Maps an imported allocation and lets the device read and write it.
std::string TryMapping(const DriverTable& driver, Device device, MemoryHandle imported,
                       size_t bytes) {
  DevicePointer address = 0;
  Result code = driver.address_reserve(&address, bytes, 0, 0, 0);
  if (code != kSuccess) return Describe(driver, "cuMemAddressReserve", code);
  const absl::Cleanup free_address = [&] { driver.address_free(address, bytes); };
  code = driver.memory_map(address, bytes, 0, imported, 0);
  if (code != kSuccess) return Describe(driver, "cuMemMap", code);
  const absl::Cleanup unmap = [&] { driver.memory_unmap(address, bytes); };
  const AccessDescription access = {.location = {kLocationDevice, device},
                                    .flags = kAccessReadWrite};
  code = driver.memory_set_access(address, bytes, &access, 1);
  return code == kSuccess ? "" : Describe(driver, "cuMemSetAccess", code);
}

}  // namespace

ContextTrial::ContextTrial(const DriverTable& driver, Device device)
    : driver_(driver), device_(device) {
  Context context = nullptr;
  Result code = driver.primary_context_retain(&context, device);
  if (code != kSuccess) {
    problem_ = DescribeNoContext(driver, device, code);
    return;
  }
  retained_ = true;
  code = driver.context_set_current(context);
  if (code != kSuccess) problem_ = Describe(driver, "cuCtxSetCurrent", code);
}

ContextTrial::~ContextTrial() {
  if (!retained_) return;
  driver_.context_set_current(nullptr);
  driver_.primary_context_release(device_);
}

AllocationProperties StagingProperties(const DriverTable& driver, Device device) {
  // Whether network cards may be let at memory of this kind; asking where they may not is an error.
  int reached = 0;
  driver.device_get_attribute(&reached, kAttributeRdmaWithVirtualMemory, device);
  return {.type = kAllocationPinned,
          .requested_handle_types = kHandlePosixDescriptor,
          .location = {kLocationDevice, device},
          .win32_handle_metadata = nullptr,
          .flags = {.compression_type = 0,
                    .gpu_direct_rdma_capable = static_cast<uint8_t>(reached == 1 ? 1 : 0),
                    .usage = 0,
                    .reserved = {}}};
}

std::string TryVirtualMemory(const DriverTable& driver, Device device) {
  if (!driver.has_virtual_memory()) return "this driver has no virtual memory management";
  const AllocationProperties properties = StagingProperties(driver, device);
  size_t bytes = 0;
  Result code = driver.memory_granularity(&bytes, &properties, kGranularityMinimum);
  if (code != kSuccess) return Describe(driver, "cuMemGetAllocationGranularity", code);
  MemoryHandle handle = 0;
  code = driver.memory_create(&handle, bytes, &properties, 0);
  if (code != kSuccess) return Describe(driver, "cuMemCreate", code);
  const absl::Cleanup release = [&] { driver.memory_release(handle); };
  int fd = -1;
  code = driver.memory_export(&fd, handle, kHandlePosixDescriptor, 0);
  if (code != kSuccess) return Describe(driver, "cuMemExportToShareableHandle", code);
  const absl::Cleanup close_fd = [&] { close(fd); };
  MemoryHandle imported = 0;
  code = driver.memory_import(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                              kHandlePosixDescriptor);
  if (code != kSuccess) return Describe(driver, "cuMemImportFromShareableHandle", code);
  const absl::Cleanup release_import = [&] { driver.memory_release(imported); };
  return TryMapping(driver, device, imported, bytes);
}

std::string TryIpcHandle(const DriverTable& driver) {
  DevicePointer address = 0;
  Result code = driver.memory_allocate(&address, kTrialBytes);
  if (code != kSuccess) return Describe(driver, "cuMemAlloc", code);
  const absl::Cleanup free_memory = [&] { driver.memory_free(address); };
  IpcHandle handle = {};
  code = driver.ipc_get_handle(&handle, address);
  if (code == kSuccess) return "";
  if (driver.runtime_take_last_error != nullptr) driver.runtime_take_last_error();
  return Describe(driver, "cuIpcGetMemHandle", code);
}

std::string TryStreamMemoryOperations(const DriverTable& driver, ContextTrial& context) {
  if (!driver.has_stream_memory_operations()) return "this driver has no cuStreamBatchMemOp";
  void* page =
      mmap(nullptr, kTrialBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return "no memory for a page";
  absl::Cleanup unmap_page = [&] { munmap(page, kTrialBytes); };
  Result code =
      driver.host_register(page, kTrialBytes, kHostRegisterPortable | kHostRegisterDeviceMap);
  if (code != kSuccess) return Describe(driver, "cuMemHostRegister", code);
  absl::Cleanup unregister = [&] { driver.host_unregister(page); };
  DevicePointer words = 0;
  code = driver.host_get_device_pointer(&words, page, 0);
  if (code != kSuccess) return Describe(driver, "cuMemHostGetDevicePointer", code);
  Stream stream = nullptr;
  code = driver.stream_create(&stream, kStreamNonBlocking);
  if (code != kSuccess) return Describe(driver, "cuStreamCreate", code);
  absl::Cleanup destroy = [&] { driver.stream_destroy(stream); };

  std::atomic_ref<uint32_t> ready(static_cast<uint32_t*>(page)[0]);
  std::atomic_ref<uint32_t> done(static_cast<uint32_t*>(page)[16]);
  BatchedOperation operations[2] = {};
  operations[0].value = {kWriteValue32, words, 1, kWriteDefault, 0};
  operations[1].value = {kWaitValue32, words + 16 * sizeof(uint32_t), 1, kWaitGreaterOrEqual, 0};
  code = driver.stream_batch(stream, 2, operations, 0);
  if (code != kSuccess) return Describe(driver, "cuStreamBatchMemOp", code);
  done.store(1, std::memory_order_release);
  if (RunsDry(driver, stream, &code)) {
    return ready.load(std::memory_order_acquire) == 1 ? "" : "the stream's write did not arrive";
  }
  if (code != kNotReady) return Describe(driver, "cuStreamQuery", code);
  context.Abandon();
  std::move(destroy).Cancel();
  std::move(unregister).Cancel();
  std::move(unmap_page).Cancel();
  return "a wait on host memory did not end when a CPU wrote it";
}

}  // namespace epd::cuda
