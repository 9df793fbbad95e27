// What the programs of tests/gpu ask a driver for by name, beside what libcuda.cc has: with it such a program runs on this
// machine. Kept out of the libcuda.so.1 of the other tests, where those programs say what they miss.
//
// Device memory is this process's, so that what is not asked of a stream is done at once.
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "tests/fakes/cuda/fake_graph.h"
#include "tests/fakes/cuda/libcuda.h"

namespace {

using epd::cuda::BatchedOperation;
using epd::cuda::DevicePointer;
using epd::cuda::DriverTable;
using epd::cuda::Event;
using epd::cuda::FakeGraph;
using epd::cuda::FakeOfLibrary;
using epd::cuda::kCaptureInvalidated;
using epd::cuda::kCaptureUnsupported;
using epd::cuda::kNotReady;
using epd::cuda::kSuccess;
using epd::cuda::Result;
using epd::cuda::Stream;

using Clock = std::chrono::steady_clock;

FakeGraph& Graph() {
  static FakeGraph& graph = *new FakeGraph(FakeOfLibrary().table());
  return graph;
}

// The driver's, but for what can be captured.
const DriverTable& Table() { return Graph().table(); }

// When each event was come to last.
struct EventTimes {
  std::mutex mutex;
  std::map<Event, Clock::time_point> at;
};
EventTimes& Times() {
  static EventTimes& times = *new EventTimes;
  return times;
}

template <typename T>
Result WaitFor(Result (*query)(T), T what) {
  Result code = query(what);
  for (; code == kNotReady; code = query(what)) usleep(20);
  return code;
}

void* At(DevicePointer address) { return reinterpret_cast<void*>(address); }

BatchedOperation Word(int operation, DevicePointer address, uint32_t value, unsigned flags) {
  BatchedOperation one = {};
  one.value.operation = operation;
  one.value.address = address;
  one.value.value = value;
  one.value.flags = flags;
  return one;
}

}  // namespace

#define EPD_FAKE_EXPORT extern "C" __attribute__((visibility("default")))

// A call that the table has with the same arguments.
#define EPD_FAKE_FORWARD(exported, field, parameters, ...) \
  EPD_FAKE_EXPORT Result exported parameters { return Table().field(__VA_ARGS__); }

EPD_FAKE_FORWARD(cuDriverGetVersion, driver_get_version, (int* version), version)
EPD_FAKE_FORWARD(cuGetErrorName, get_error_name, (Result code, const char** name), code, name)
EPD_FAKE_FORWARD(cuDeviceGet, device_get, (int* device, int ordinal), device, ordinal)
EPD_FAKE_FORWARD(cuDeviceGetName, device_get_name, (char* name, int bytes, int device), name, bytes,
                 device)
EPD_FAKE_FORWARD(cuDeviceCanAccessPeer, device_can_access_peer, (int* can, int device, int peer),
                 can, device, peer)
EPD_FAKE_FORWARD(cuDevicePrimaryCtxRetain, primary_context_retain,
                 (epd::cuda::Context * context, int device), context, device)
EPD_FAKE_FORWARD(cuCtxSetCurrent, context_set_current, (epd::cuda::Context context), context)
EPD_FAKE_FORWARD(cuModuleLoadData, module_load, (epd::cuda::Module * module, const void* image),
                 module, image)
EPD_FAKE_FORWARD(cuModuleGetFunction, module_get_function,
                 (epd::cuda::Function * function, epd::cuda::Module module, const char* name),
                 function, module, name)
EPD_FAKE_FORWARD(cuFuncSetAttribute, function_set_attribute,
                 (epd::cuda::Function function, int attribute, int value), function, attribute,
                 value)
EPD_FAKE_FORWARD(cuLaunchKernel, launch_kernel,
                 (epd::cuda::Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                  unsigned by, unsigned bz, unsigned shared, Stream stream, void** arguments,
                  void** extra),
                 function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra)
EPD_FAKE_FORWARD(cuMemAlloc_v2, memory_allocate, (DevicePointer * address, size_t bytes), address,
                 bytes)
EPD_FAKE_FORWARD(cuMemFree_v2, memory_free, (DevicePointer address), address)
EPD_FAKE_FORWARD(cuMemGetInfo_v2, memory_get_free, (size_t * free, size_t* total), free, total)
EPD_FAKE_FORWARD(cuMemHostRegister_v2, host_register, (void* memory, size_t bytes, unsigned flags),
                 memory, bytes, flags)
EPD_FAKE_FORWARD(cuMemHostUnregister, host_unregister, (void* memory), memory)
EPD_FAKE_FORWARD(cuMemHostGetDevicePointer_v2, host_get_device_pointer,
                 (DevicePointer * address, void* memory, unsigned flags), address, memory, flags)
EPD_FAKE_FORWARD(cuStreamCreate, stream_create, (Stream * stream, unsigned flags), stream, flags)
EPD_FAKE_FORWARD(cuThreadExchangeStreamCaptureMode, thread_exchange_capture_mode, (int* mode), mode)
EPD_FAKE_FORWARD(cuStreamIsCapturing, stream_is_capturing, (Stream stream, int* status), stream,
                 status)
EPD_FAKE_FORWARD(cuStreamBatchMemOp_v2, stream_batch,
                 (Stream stream, unsigned count, BatchedOperation* operations, unsigned flags),
                 stream, count, operations, flags)
EPD_FAKE_FORWARD(cuEventCreate, event_create, (Event * event, unsigned flags), event, flags)
EPD_FAKE_FORWARD(cuMemcpyDtoDAsync_v2, copy_async,
                 (DevicePointer to, DevicePointer from, size_t bytes, Stream stream), to, from,
                 bytes, stream)
EPD_FAKE_FORWARD(cuMemcpyHtoDAsync_v2, copy_async,
                 (DevicePointer to, DevicePointer from, size_t bytes, Stream stream), to, from,
                 bytes, stream)
EPD_FAKE_FORWARD(cuMemCreate, memory_create,
                 (epd::cuda::MemoryHandle * handle, size_t bytes,
                  const epd::cuda::AllocationProperties* properties, uint64_t flags),
                 handle, bytes, properties, flags)
EPD_FAKE_FORWARD(cuMemRelease, memory_release, (epd::cuda::MemoryHandle handle), handle)
EPD_FAKE_FORWARD(cuMemGetAllocationGranularity, memory_granularity,
                 (size_t * bytes, const epd::cuda::AllocationProperties* properties, int option),
                 bytes, properties, option)
EPD_FAKE_FORWARD(cuMemAddressReserve, address_reserve,
                 (DevicePointer * address, size_t bytes, size_t alignment, DevicePointer hint,
                  uint64_t flags),
                 address, bytes, alignment, hint, flags)
EPD_FAKE_FORWARD(cuMemMap, memory_map,
                 (DevicePointer address, size_t bytes, size_t offset,
                  epd::cuda::MemoryHandle handle, uint64_t flags),
                 address, bytes, offset, handle, flags)
EPD_FAKE_FORWARD(cuMemUnmap, memory_unmap, (DevicePointer address, size_t bytes), address, bytes)
EPD_FAKE_FORWARD(cuMemSetAccess, memory_set_access,
                 (DevicePointer address, size_t bytes,
                  const epd::cuda::AccessDescription* descriptions, size_t count),
                 address, bytes, descriptions, count)
EPD_FAKE_FORWARD(cuMemExportToShareableHandle, memory_export,
                 (void* shareable, epd::cuda::MemoryHandle handle, int type, uint64_t flags),
                 shareable, handle, type, flags)
EPD_FAKE_FORWARD(cuMemImportFromShareableHandle, memory_import,
                 (epd::cuda::MemoryHandle * handle, void* shareable, int type), handle, shareable,
                 type)

// The driver's table has none: see fake_graph.h.
EPD_FAKE_EXPORT Result cuCtxSynchronize() {
  if (FakeGraph::EndAll()) return kCaptureUnsupported;
  while (FakeOfLibrary().RunStreams() > 0) usleep(50);
  size_t unused = 0;
  return Table().memory_get_free(&unused, &unused);  // The error that a context has met stays.
}
EPD_FAKE_EXPORT Result cuMemAllocManaged(DevicePointer* address, size_t bytes, unsigned) {
  return Table().memory_allocate(address, bytes);
}
EPD_FAKE_EXPORT Result cuCtxEnablePeerAccess(epd::cuda::Context, unsigned) { return kSuccess; }
EPD_FAKE_EXPORT Result cuMemsetD8_v2(DevicePointer to, unsigned char byte, size_t bytes) {
  std::memset(At(to), byte, bytes);
  return kSuccess;
}
EPD_FAKE_EXPORT Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
  std::memcpy(At(to), from, bytes);
  return kSuccess;
}
EPD_FAKE_EXPORT Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  std::memcpy(to, At(from), bytes);
  return kSuccess;
}
EPD_FAKE_EXPORT Result cuMemcpyPeerAsync(DevicePointer to, epd::cuda::Context, DevicePointer from,
                                         epd::cuda::Context, size_t bytes, Stream stream) {
  return Table().copy_async(to, from, bytes, stream);
}

EPD_FAKE_EXPORT Result cuStreamWriteValue32_v2(Stream stream, DevicePointer address, uint32_t value,
                                               unsigned flags) {
  BatchedOperation one = Word(epd::cuda::kWriteValue32, address, value, flags);
  return Table().stream_batch(stream, 1, &one, 0);
}
EPD_FAKE_EXPORT Result cuStreamWaitValue32_v2(Stream stream, DevicePointer address, uint32_t value,
                                              unsigned flags) {
  BatchedOperation one = Word(epd::cuda::kWaitValue32, address, value, flags);
  return Table().stream_batch(stream, 1, &one, 0);
}
// Who asks without end would keep the lock from what it waits for, and calls are written down.
EPD_FAKE_EXPORT Result cuStreamQuery(Stream stream) {
  const Result code = Table().stream_query(stream);
  if (code == kNotReady) usleep(20);
  return code;
}
EPD_FAKE_EXPORT Result cuStreamSynchronize(Stream stream) {
  return WaitFor(Table().stream_query, stream);
}

EPD_FAKE_EXPORT Result cuStreamBeginCapture_v2(Stream, int) {
  Graph().Begin();
  return kSuccess;
}
EPD_FAKE_EXPORT Result cuStreamEndCapture(Stream, FakeGraph::Calls** graph) {
  const bool whole = FakeGraph::IsWhole();
  FakeGraph::Calls calls = Graph().End();
  *graph = whole ? new FakeGraph::Calls(std::move(calls)) : nullptr;
  return whole ? kSuccess : kCaptureInvalidated;
}
EPD_FAKE_EXPORT Result cuGraphInstantiateWithFlags(FakeGraph::Calls** made, FakeGraph::Calls* graph,
                                                   uint64_t) {
  *made = graph;
  return kSuccess;
}
EPD_FAKE_EXPORT Result cuGraphLaunch(FakeGraph::Calls* graph, Stream stream) {
  return FakeGraph::Replay(*graph, stream);
}

EPD_FAKE_EXPORT Result cuEventRecord(Event event, Stream stream) {
  const auto come_to = [event] {
    const std::lock_guard lock(Times().mutex);
    Times().at[event] = Clock::now();
    return true;
  };
  if (const Result code = FakeOfLibrary().Put(stream, come_to); code != kSuccess) return code;
  return Table().event_record(event, stream);
}
EPD_FAKE_EXPORT Result cuEventRecordWithFlags(Event event, Stream stream, unsigned) {
  return cuEventRecord(event, stream);
}
EPD_FAKE_EXPORT Result cuEventSynchronize(Event event) {
  return WaitFor(Table().event_query, event);
}
EPD_FAKE_EXPORT Result cuEventElapsedTime_v2(float* ms, Event begin, Event end) {
  const std::lock_guard lock(Times().mutex);
  *ms = std::chrono::duration<float, std::milli>(Times().at.at(end) - Times().at.at(begin)).count();
  return kSuccess;
}
