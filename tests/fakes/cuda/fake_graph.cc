#include "tests/fakes/cuda/fake_graph.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/launch.h"

namespace epd::cuda {
namespace {

constexpr Result kCaptureUnsupported = 900;
constexpr Result kCaptureInvalidated = 901;
constexpr int kCaptureStatusActive = 1;

const DriverTable* real = nullptr;
thread_local FakeGraph::Calls* capture = nullptr;
std::atomic<int> num_captures = 0;
std::mutex names_mutex;
std::map<Function, size_t> args_bytes;

Result Put(std::function<Result(Stream)> call, Stream stream) {
  if (capture == nullptr) return call(stream);
  capture->push_back(std::move(call));
  return kSuccess;
}

Result Batch(Stream stream, unsigned count, BatchedOperation* operations, unsigned flags) {
  std::vector<BatchedOperation> copy(operations, operations + count);
  return Put(
      [copy, flags](Stream to) mutable {
        return real->stream_batch(to, static_cast<unsigned>(copy.size()), copy.data(), flags);
      },
      stream);
}

Result Copy(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  return Put([=](Stream on) { return real->copy_async(to, from, bytes, on); }, stream);
}

Result Fill(DevicePointer to, unsigned char byte, size_t bytes, Stream stream) {
  return Put([=](Stream on) { return real->fill_async(to, byte, bytes, on); }, stream);
}

Result GetFunction(Function* function, Module module, const char* name) {
  const Result code = real->module_get_function(function, module, name);
  std::lock_guard lock(names_mutex);
  for (int i = 0; code == kSuccess && i < NumKernels(); ++i) {
    if (std::strcmp(KernelAt(i).name, name) == 0) {
      args_bytes[*function] = KernelAt(i).args_bytes;
    }
  }
  return code;
}

Result LaunchKernel(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                    unsigned by, unsigned bz, unsigned shared, Stream stream, void** arguments,
                    void** extra) {
  size_t bytes = 0;
  {
    std::lock_guard lock(names_mutex);
    bytes = args_bytes.at(function);
  }
  std::vector<uint64_t> copy((bytes + 7) / 8);
  std::memcpy(copy.data(), arguments[0], bytes);
  return Put(
      [=](Stream to) mutable {
        void* copied[] = {copy.data()};
        return real->launch_kernel(function, gx, gy, gz, bx, by, bz, shared, to, copied, extra);
      },
      stream);
}

// What would wait for the device or make memory ends a capture.
Result NoMemory(DevicePointer* address, size_t bytes) {
  if (capture != nullptr) return kCaptureInvalidated;
  return real->memory_allocate(address, bytes);
}

Result IsCapturing(Stream, int* status) {
  *status = capture != nullptr ? kCaptureStatusActive : kCaptureStatusNone;
  return kSuccess;
}

// What asks how far a stream is while it is captured ends the capture.
Result Query(Stream stream) {
  return capture != nullptr ? kCaptureInvalidated : real->stream_query(stream);
}

// CUDA's documentation of cuCtxSynchronize and of captures: nothing may wait for a context that captures.
Result Synchronize() {
  return num_captures > 0 ? kCaptureUnsupported : real->context_synchronize();
}

}  // namespace

FakeGraph::FakeGraph(const DriverTable& driver) : driver_(driver), table_(driver) {
  real = &driver_;
  table_.stream_batch = &Batch;
  table_.stream_is_capturing = &IsCapturing;
  table_.stream_query = &Query;
  table_.copy_async = &Copy;
  table_.fill_async = &Fill;
  table_.module_get_function = &GetFunction;
  table_.launch_kernel = &LaunchKernel;
  table_.memory_allocate = &NoMemory;
  table_.context_synchronize = &Synchronize;
}

FakeGraph::~FakeGraph() { real = nullptr; }

void FakeGraph::Begin() {
  capture = new Calls;
  ++num_captures;
}

FakeGraph::Calls FakeGraph::End() {
  Calls calls = std::move(*capture);
  delete capture;
  capture = nullptr;
  --num_captures;
  return calls;
}

Result FakeGraph::Replay(const Calls& calls, Stream stream) {
  for (const auto& call : calls) {
    if (const Result code = call(stream); code != kSuccess) return code;
  }
  return kSuccess;
}

}  // namespace epd::cuda
