#include "tests/fakes/cuda/fake_graph.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/launch.h"

namespace epd::cuda {
namespace {

constexpr int kCaptureStatusActive = 1;
constexpr int kCaptureModeGlobal = 0;

struct Capture {
  FakeGraph::Calls calls;
  bool valid = true;
};

const DriverTable* real = nullptr;
std::mutex captures_mutex;
std::set<Capture*> captures;
thread_local Capture* own = nullptr;
thread_local int mode = kCaptureModeGlobal;
std::mutex names_mutex;
std::map<Function, size_t> args_bytes;

Result ExchangeMode(int* other) {
  std::swap(mode, *other);
  return kSuccess;
}

// A call that no capture sees.
template <auto Member, typename... Arguments>
Result Unseen(Arguments... arguments) {
  if (mode != kCaptureModeRelaxed && FakeGraph::EndAll()) return kCaptureUnsupported;
  return (real->*Member)(arguments...);
}

template <auto Member, typename... Arguments>
void Guard(DriverTable& table, Result (*there)(Arguments...)) {
  if (there != nullptr) table.*Member = &Unseen<Member, Arguments...>;
}

Result Put(std::function<Result(Stream)> call, Stream stream) {
  if (own == nullptr) return call(stream);
  std::lock_guard lock(captures_mutex);
  if (!own->valid) return kCaptureInvalidated;
  own->calls.push_back(std::move(call));
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
  std::vector<uint64_t> copy(bytes / sizeof(uint64_t) + 1);
  std::memcpy(copy.data(), arguments[0], bytes);
  return Put(
      [=](Stream to) mutable {
        void* copied[] = {copy.data()};
        return real->launch_kernel(function, gx, gy, gz, bx, by, bz, shared, to, copied, extra);
      },
      stream);
}

Result IsCapturing(Stream, int* status) {
  *status = own != nullptr ? kCaptureStatusActive : kCaptureStatusNone;
  return kSuccess;
}

// How far a stream is that is captured nobody may ask, in any mode.
Result Query(Stream stream) {
  if (own == nullptr) return Unseen<&DriverTable::stream_query>(stream);
  FakeGraph::EndAll();
  return kCaptureInvalidated;
}

}  // namespace

#define EPD_FAKE_UNSEEN(member) Guard<&DriverTable::member>(table_, driver.member)

FakeGraph::FakeGraph(const DriverTable& driver) : driver_(driver), table_(driver) {
  real = &driver_;
  table_.stream_batch = &Batch;
  table_.stream_is_capturing = &IsCapturing;
  table_.thread_exchange_capture_mode = &ExchangeMode;
  table_.copy_async = &Copy;
  table_.fill_async = &Fill;
  table_.module_get_function = &GetFunction;
  table_.launch_kernel = &LaunchKernel;
  EPD_FAKE_UNSEEN(memory_create);
  EPD_FAKE_UNSEEN(memory_release);
  EPD_FAKE_UNSEEN(memory_import);
  EPD_FAKE_UNSEEN(address_reserve);
  EPD_FAKE_UNSEEN(address_free);
  EPD_FAKE_UNSEEN(memory_map);
  EPD_FAKE_UNSEEN(memory_unmap);
  EPD_FAKE_UNSEEN(memory_set_access);
  EPD_FAKE_UNSEEN(memory_allocate);
  EPD_FAKE_UNSEEN(memory_free);
  EPD_FAKE_UNSEEN(ipc_open_handle);
  EPD_FAKE_UNSEEN(ipc_close_handle);
  EPD_FAKE_UNSEEN(host_register);
  EPD_FAKE_UNSEEN(host_unregister);
  EPD_FAKE_UNSEEN(stream_create);
  EPD_FAKE_UNSEEN(stream_destroy);
  EPD_FAKE_UNSEEN(event_create);
  EPD_FAKE_UNSEEN(event_destroy);
  EPD_FAKE_UNSEEN(event_query);
  EPD_FAKE_UNSEEN(module_load);
  EPD_FAKE_UNSEEN(module_unload);
  table_.stream_query = &Query;
}

#undef EPD_FAKE_UNSEEN

FakeGraph::~FakeGraph() { real = nullptr; }

void FakeGraph::Begin() {
  own = new Capture;
  std::lock_guard lock(captures_mutex);
  captures.insert(own);
}

bool FakeGraph::IsWhole() {
  std::lock_guard lock(captures_mutex);
  return own != nullptr && own->valid;
}

bool FakeGraph::EndAll() {
  std::lock_guard lock(captures_mutex);
  for (Capture* capture : captures) capture->valid = false;
  return !captures.empty();
}

FakeGraph::Calls FakeGraph::End() {
  const std::unique_ptr<Capture> ended(std::exchange(own, nullptr));
  std::lock_guard lock(captures_mutex);
  captures.erase(ended.get());
  return ended->valid ? std::move(ended->calls) : Calls();
}

Result FakeGraph::Replay(const Calls& calls, Stream stream) {
  for (const auto& call : calls) {
    if (const Result code = call(stream); code != kSuccess) return code;
  }
  return kSuccess;
}

}  // namespace epd::cuda
