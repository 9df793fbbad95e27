// Host memory, IPC handles, streams, events and kernels of the fake driver.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/fakes/cuda/fake_call.h"

namespace epd::cuda {
namespace {

// What stands in the 64 bytes of a handle.
struct Shared {
  pid_t pid;
  int fd;
};

std::atomic_ref<uint32_t> Word(DevicePointer address) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(address));
}

bool WaitEnds(const BatchedOperation& operation) {
  const uint32_t now = Word(operation.value.address).load(std::memory_order_acquire);
  const auto value = static_cast<uint32_t>(operation.value.value);
  if (operation.value.flags == kWaitEqual) return now == value;
  return static_cast<int32_t>(now - value) >= 0;
}

}  // namespace

void FakeDriver::FillSharingCalls() {
  EPD_FAKE_CALL(ipc_get_handle, "cuIpcGetMemHandle", kNeedsContext,
                (IpcHandle * handle, DevicePointer address), {
                  const auto found = d.mapped_.find(address);
                  const bool plain = found != d.mapped_.end() && found->second.handle == 0;
                  if (!plain || !d.machine_.legacy_ipc) {
                    d.owes_last_error_ = d.table_.runtime_take_last_error != nullptr;
                    return plain ? kNotSupported : kInvalidValue;
                  }
                  const Shared shared = {.pid = getpid(), .fd = found->second.fd};
                  std::memset(handle->bytes, 0, sizeof handle->bytes);
                  std::memcpy(handle->bytes, &shared, sizeof shared);
                  return kSuccess;
                });
  EPD_FAKE_CALL(ipc_open_handle, "cuIpcOpenMemHandle", d.MappingRules(kMayBlock),
                (DevicePointer * address, IpcHandle handle, unsigned), {
                  Shared shared = {};
                  std::memcpy(&shared, handle.bytes, sizeof shared);
                  if (shared.pid == getpid()) return kInvalidContext;
                  char path[64];
                  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.fd);
                  const int fd = open(path, O_RDWR | O_CLOEXEC);
                  struct stat file;
                  if (fd < 0 || fstat(fd, &file) != 0) return kInvalidValue;
                  const auto bytes = static_cast<uint64_t>(file.st_size);
                  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                  *address = reinterpret_cast<DevicePointer>(got);
                  d.mapped_[*address] = {
                      .bytes = bytes, .fd = fd, .accessible = true, .opened = true};
                  return kSuccess;
                });
  EPD_FAKE_CALL(ipc_close_handle, "cuIpcCloseMemHandle", d.MappingRules(kMayBlock | kTakesAway),
                (DevicePointer address), {
                  const auto found = d.mapped_.find(address);
                  if (found == d.mapped_.end() || !found->second.opened) return kInvalidValue;
                  munmap(reinterpret_cast<void*>(address), found->second.bytes);
                  close(found->second.fd);
                  d.mapped_.erase(found);
                  return kSuccess;
                });
  EPD_FAKE_CALL(host_register, "cuMemHostRegister", kNeedsContext | kMayBlock,
                (void* memory, size_t bytes, unsigned), {
                  // Whole pages are pinned, and none twice (CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED).
                  constexpr uintptr_t kPage = 4096;
                  const auto first = reinterpret_cast<uintptr_t>(memory) / kPage;
                  const auto last = (reinterpret_cast<uintptr_t>(memory) + bytes - 1) / kPage;
                  for (const auto& [other, other_bytes] : d.registered_) {
                    const auto start = reinterpret_cast<uintptr_t>(other);
                    if (start / kPage <= last && (start + other_bytes - 1) / kPage >= first) {
                      return 712;
                    }
                  }
                  d.registered_.emplace(memory, bytes);
                  return kSuccess;
                });
  EPD_FAKE_CALL(host_unregister, "cuMemHostUnregister", kNeedsContext | kMayBlock | kTakesAway,
                (void* memory),
                { return d.registered_.erase(memory) == 1 ? kSuccess : kInvalidValue; });
  EPD_FAKE_CALL(host_get_device_pointer, "cuMemHostGetDevicePointer", kNeedsContext,
                (DevicePointer * address, void* memory, unsigned), {
                  const auto at = static_cast<char*>(memory);
                  for (const auto& [start, bytes] : d.registered_) {
                    const auto first = static_cast<char*>(start);
                    if (at < first || at >= first + bytes) continue;
                    *address = reinterpret_cast<DevicePointer>(memory);
                    return kSuccess;
                  }
                  return kInvalidValue;
                });
}

void FakeDriver::FillStreamCalls() {
  EPD_FAKE_CALL(stream_create, "cuStreamCreate", kNeedsContext | kMayBlock,
                (Stream * stream, unsigned), {
                  *stream = reinterpret_cast<Stream>(d.next_++);
                  StreamState& made = d.streams_[*stream];
                  made.device = CurrentDevice();
                  made.queue = d.num_streams_made_[made.device]++ % d.connections_;
                  return kSuccess;
                });
  EPD_FAKE_CALL(stream_destroy, "cuStreamDestroy", kNeedsContext, (Stream stream), {
    const auto found = d.streams_.find(stream);
    if (found == d.streams_.end()) return kInvalidValue;
    if (!found->second.operations.empty()) d.Violation("cuStreamDestroy", "it has work left");
    d.streams_.erase(found);
    return kSuccess;
  });
  EPD_FAKE_CALL(stream_query, "cuStreamQuery", kNeedsContext, (Stream stream), {
    const auto found = d.streams_.find(stream);
    if (found == d.streams_.end()) return kInvalidValue;
    return found->second.operations.empty() ? kSuccess : kNotReady;
  });
  EPD_FAKE_CALL(stream_is_capturing, "cuStreamIsCapturing", kNeedsContext,
                (Stream stream, int* status), {
                  if (!d.streams_.contains(stream)) return kInvalidValue;
                  *status = kCaptureStatusNone;
                  return kSuccess;
                });
  EPD_FAKE_CALL(thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", kFree,
                (int* mode), {
                  static thread_local int current = 0;
                  std::swap(current, *mode);
                  return kSuccess;
                });
  EPD_FAKE_CALL(stream_batch, "cuStreamBatchMemOp", kNeedsContext,
                (Stream stream, unsigned count, BatchedOperation* operations, unsigned), {
                  if (!d.machine_.stream_memory_operations) return kNotSupported;
                  if (count == 0 || count > kMaxBatchedOperations) return kInvalidValue;
                  for (unsigned i = 0; i < count; ++i) {
                    const BatchedOperation one = operations[i];
                    const bool is_wait = one.value.operation == kWaitValue32;
                    const auto run = [&d, one, is_wait, stream] {
                      if (is_wait && !(d.machine_.waits_end && WaitEnds(one))) return false;
                      d.Did(stream,
                            {.kind = is_wait ? FakeWork::Kind::kWait : FakeWork::Kind::kWrite});
                      if (is_wait) return true;
                      Word(one.value.address)
                          .store(static_cast<uint32_t>(one.value.value), std::memory_order_release);
                      return true;
                    };
                    if (const Result bad = d.Enqueue(stream, {is_wait, run}); bad != kSuccess)
                      return bad;
                  }
                  return kSuccess;
                });
  EPD_FAKE_CALL(event_create, "cuEventCreate", kNeedsContext | kMayBlock, (Event * event, unsigned),
                {
                  *event = reinterpret_cast<Event>(d.next_++);
                  d.events_[*event];
                  return kSuccess;
                });
  EPD_FAKE_CALL(event_destroy, "cuEventDestroy", kNeedsContext, (Event event),
                { return d.events_.erase(event) == 1 ? kSuccess : kInvalidValue; });
  EPD_FAKE_CALL(event_record, "cuEventRecord", kNeedsContext, (Event event, Stream stream), {
    const auto found = d.events_.find(event);
    if (found == d.events_.end()) return kInvalidValue;
    found->second.reached = false;
    const uint64_t number = ++found->second.recorded;
    const auto run = [&d, event, number] {
      const auto state = d.events_.find(event);
      if (state != d.events_.end() && state->second.recorded == number)
        state->second.reached = true;
      return true;
    };
    return d.Enqueue(stream, {false, run});
  });
  EPD_FAKE_CALL(event_query, "cuEventQuery", kNeedsContext, (Event event), {
    const auto found = d.events_.find(event);
    if (found == d.events_.end()) return kInvalidValue;
    return found->second.reached ? kSuccess : kNotReady;
  });
}

void FakeDriver::FillWorkCalls() {
  EPD_FAKE_CALL(copy_async, "cuMemcpyAsync", kNeedsContext,
                (DevicePointer to, DevicePointer from, size_t bytes, Stream stream), {
                  const auto run = [&d, stream, to, from, bytes] {
                    d.Did(stream, {.kind = FakeWork::Kind::kCopy, .bytes = bytes});
                    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
                    return true;
                  };
                  return d.Enqueue(stream, {false, run});
                });
  EPD_FAKE_CALL(fill_async, "cuMemsetD8Async", kNeedsContext,
                (DevicePointer to, unsigned char byte, size_t bytes, Stream stream), {
                  const auto run = [&d, stream, to, byte, bytes] {
                    d.Did(stream, {.kind = FakeWork::Kind::kFill, .bytes = bytes});
                    std::memset(reinterpret_cast<void*>(to), byte, bytes);
                    return true;
                  };
                  return d.Enqueue(stream, {false, run});
                });
  EPD_FAKE_CALL(module_load, "cuModuleLoadData", kNeedsContext | kMayBlock,
                (Module * module, const void*), {
                  *module = reinterpret_cast<Module>(d.next_++);
                  d.modules_.insert(*module);
                  return kSuccess;
                });
  EPD_FAKE_CALL(module_unload, "cuModuleUnload", kNeedsContext | kMayBlock | kTakesAway,
                (Module module),
                { return d.modules_.erase(module) == 1 ? kSuccess : kInvalidValue; });
  EPD_FAKE_CALL(module_get_function, "cuModuleGetFunction", kNeedsContext,
                (Function * function, Module module, const char* name), {
                  if (d.modules_.count(module) == 0) return kInvalidValue;
                  if (d.kernels_.count(name) == 0) return 500;  // CUDA_ERROR_NOT_FOUND
                  *function = reinterpret_cast<Function>(d.next_++);
                  d.functions_[*function] = {.name = name};
                  return kSuccess;
                });
  EPD_FAKE_CALL(function_set_attribute, "cuFuncSetAttribute", kNeedsContext,
                (Function function, int attribute, int value), {
                  const auto found = d.functions_.find(function);
                  // CUDA's documentation of the attribute: no more than the device's own of a block.
                  if (found == d.functions_.end() || attribute != kFunctionMaxDynamicSharedBytes ||
                      value < 0 || value > d.machine_.max_shared_bytes) {
                    return kInvalidValue;
                  }
                  found->second.max_shared_bytes = static_cast<unsigned>(value);
                  return kSuccess;
                });
  EPD_FAKE_CALL(
      launch_kernel, "cuLaunchKernel", kNeedsContext,
      (Function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
       unsigned shared_bytes, Stream stream, void** arguments, void**),
      {
        const auto found = d.functions_.find(function);
        if (found == d.functions_.end() || shared_bytes > found->second.max_shared_bytes) {
          return kInvalidValue;
        }
        const std::string& name = found->second.name;
        const Kernel& kernel = d.kernels_.at(name);
        // Words, so that what is copied is aligned as arguments are.
        std::vector<uint64_t> copy((d.args_bytes_.at(name) + 7) / 8);
        if (!copy.empty()) {
          std::memcpy(copy.data(), arguments[0], d.args_bytes_.at(name));
        }
        const auto run = [&d, stream, name, kernel, arguments, copy]() mutable {
          d.Did(stream, {.kind = FakeWork::Kind::kKernel, .kernel = name});
          void* copied[] = {copy.data()};
          kernel(copy.empty() ? arguments : copied);
          return true;
        };
        return d.Enqueue(stream, {false, run});
      });
}

}  // namespace epd::cuda
