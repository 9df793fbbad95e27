// CUDA for a JAX that has none: XLA's CPU client calls the handlers of the CUDA platform, each in a stream of the driver that
// LD_LIBRARY_PATH leads to (tests/fakes/cuda). jax_plugins/epd_fake_cuda puts them there.
//
// A handler sees XLA's own interface but for what a CPU client has none of, the stream and the device's number, which is the
// CPU device's. Its stream has come to its end when the call returns, since nobody but the caller waits for the results.
#include <xla/ffi/api/c_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace {

using epd::cuda::DriverTable;
using epd::cuda::LoadedDriver;

using Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

struct Device {
  epd::cuda::Context context = nullptr;
  epd::cuda::Stream stream = nullptr;
};

// What this process has begun. XLA's threads outlive main().
struct Devices {
  std::mutex mutex;
  std::map<int, Device> all;
  std::mutex initialising;
  std::set<void*> initialised;  // Calls of compiled programs, by their state.
};
Devices& TheDevices() {
  static auto* const devices = new Devices;
  return *devices;
}

// The call that this thread is in.
struct Current {
  int device = 0;
  epd::cuda::Stream stream = nullptr;
  const XLA_FFI_Api* api = nullptr;          // XLA's own.
  std::unique_lock<std::mutex> initialises;  // Held: it is the first of its call in the process.
};
thread_local Current current;

XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = current.stream;
  return nullptr;
}
XLA_FFI_Error* GetDevice(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = current.device;
  return nullptr;
}

XLA_FFI_Error* Fail(const XLA_FFI_Api* api, const std::string& why) {
  const std::string text = "fake CUDA platform: " + why;
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = text.c_str();
  args.errc = XLA_FFI_Error_Code_INTERNAL;
  return api->XLA_FFI_Error_Create(&args);
}

const LoadedDriver& TheDriver() {
  static const auto* const driver = new LoadedDriver([] {
    LoadedDriver loaded = epd::cuda::LoadDriver();
    if (!loaded.ok()) return loaded;
    if (const epd::cuda::Result code = loaded.table.init(0); code != epd::cuda::kSuccess) {
      loaded.problem = epd::cuda::Describe(loaded.table, "cuInit", code);
    }
    return loaded;
  }());
  return *driver;
}

// Makes the device this thread's, with a stream of its own as XLA has it. "", or what failed.
std::string Enter(const DriverTable& driver, int ordinal) {
  const std::lock_guard lock(TheDevices().mutex);
  Device& device = TheDevices().all[ordinal];
  if (device.context == nullptr &&
      driver.primary_context_retain(&device.context, ordinal) != epd::cuda::kSuccess) {
    return "the driver has no device " + std::to_string(ordinal);
  }
  if (driver.context_set_current(device.context) != epd::cuda::kSuccess) return "no context";
  if (device.stream == nullptr &&
      driver.stream_create(&device.stream, epd::cuda::kStreamNonBlocking) != epd::cuda::kSuccess) {
    return "no stream";
  }
  current.device = ordinal;
  current.stream = device.stream;
  return "";
}

epd::cuda::Result Await(const DriverTable& driver, epd::cuda::Stream stream) {
  epd::cuda::Result code = driver.stream_query(stream);
  while (code == epd::cuda::kNotReady) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    code = driver.stream_query(stream);
  }
  return code;
}

void AwaitAll(const DriverTable& driver) {
  std::vector<epd::cuda::Stream> streams;
  {
    const std::lock_guard lock(TheDevices().mutex);
    for (const auto& [ordinal, device] : TheDevices().all) streams.push_back(device.stream);
  }
  for (epd::cuda::Stream const stream : streams) Await(driver, stream);
}

// A new call of a program may have the place in memory of one that is gone.
XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  const std::lock_guard lock(TheDevices().initialising);
  TheDevices().initialised.erase(args->state);
  return current.api->XLA_FFI_State_Set(args);
}

// XLA's GPU client lets no device of a process begin before all have initialised (RendezvousAfterInitialization): what is made
// then may wait for a device, which waits for another rank. So the first of a call initialises it on all, while no stream has
// work. A handler asks for its state before it does anything.
XLA_FFI_Error* GetState(XLA_FFI_State_Get_Args* args) {
  if (XLA_FFI_Error* const error = current.api->XLA_FFI_State_Get(args)) return error;
  if (current.initialises.owns_lock()) return nullptr;
  std::unique_lock lock(TheDevices().initialising);
  if (!TheDevices().initialised.insert(args->state).second) return nullptr;
  AwaitAll(TheDriver().table);
  current.initialises = std::move(lock);
  return nullptr;
}

struct Stages {
  Handler* instantiate;
  Handler* initialize;
  Handler* execute;
};

// XLA's interface with what a GPU's handler may ask for.
const XLA_FFI_Api* ApiOver(const XLA_FFI_Api* api) {
  static const XLA_FFI_Api made = [api] {
    XLA_FFI_Api over = *api;
    over.XLA_FFI_Stream_Get = &GetStream;
    over.XLA_FFI_DeviceOrdinal_Get = &GetDevice;
    over.XLA_FFI_State_Get = &GetState;
    over.XLA_FFI_State_Set = &SetState;
    return over;
  }();
  current.api = api;
  return &made;
}

XLA_FFI_Error* InitializeElsewhere(Handler* initialize, XLA_FFI_CallFrame& frame, int num_devices) {
  const int here = current.device;
  const DriverTable& driver = TheDriver().table;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    if (ordinal == here || !Enter(driver, ordinal).empty()) continue;
    if (XLA_FFI_Error* const error = initialize(&frame)) {  // It may have no rank.
      XLA_FFI_Error_Destroy_Args args = {};
      args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
      args.error = error;
      current.api->XLA_FFI_Error_Destroy(&args);
    }
  }
  const std::string why = Enter(driver, here);
  return why.empty() ? nullptr : Fail(current.api, why);
}

int num_devices = 1;  // That JAX has.

XLA_FFI_Error* Initialize(Handler* initialize, XLA_FFI_CallFrame frame) {
  frame.stage = XLA_FFI_ExecutionStage_INITIALIZE;
  XLA_FFI_Error* error = initialize(&frame);
  if (current.initialises.owns_lock()) {
    if (error == nullptr) error = InitializeElsewhere(initialize, frame, num_devices);
    current.initialises.unlock();
  }
  return error;
}

XLA_FFI_Error* Call(const Stages& stages, XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr) return stages.execute(frame);  // Asks for its metadata.
  XLA_FFI_DeviceOrdinal_Get_Args device = {};
  device.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  device.ctx = frame->ctx;
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_DeviceOrdinal_Get(&device)) return error;
  const LoadedDriver& driver = TheDriver();
  if (!driver.ok()) return Fail(frame->api, driver.problem);
  // The number in the process, behind the process's.
  constexpr int kMaxDevices = 1 << 17;
  if (const std::string why = Enter(driver.table, device.device_ordinal % kMaxDevices);
      !why.empty())
    return Fail(frame->api, why);
  XLA_FFI_CallFrame own = *frame;
  own.api = ApiOver(frame->api);
  if (XLA_FFI_Error* error = Initialize(stages.initialize, own)) return error;
  if (XLA_FFI_Error* error = stages.execute(&own)) return error;
  const epd::cuda::Result code = Await(driver.table, current.stream);
  if (code == epd::cuda::kSuccess) return nullptr;
  return Fail(frame->api, epd::cuda::Describe(driver.table, "cuStreamQuery", code));
}

XLA_FFI_Error* Instantiate(const Stages& stages, XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr) return stages.instantiate(frame);
  XLA_FFI_CallFrame own = *frame;
  own.api = ApiOver(frame->api);
  return stages.instantiate(&own);
}

// XLA takes functions, which know nothing of what they were made for: two for each target.
constexpr std::size_t kMostTargets = 16;
std::array<Stages, kMostTargets> targets;
std::size_t num_targets = 0;

template <std::size_t i>
XLA_FFI_Error* InstantiateOf(XLA_FFI_CallFrame* frame) {
  return Instantiate(targets[i], frame);
}
template <std::size_t i>
XLA_FFI_Error* CallOf(XLA_FFI_CallFrame* frame) {
  return Call(targets[i], frame);
}
using Pair = std::pair<Handler*, Handler*>;
template <std::size_t... i>
constexpr std::array<Pair, sizeof...(i)> Handlers(std::index_sequence<i...>) {
  return {Pair(&InstantiateOf<i>, &CallOf<i>)...};
}

}  // namespace

// Takes the three stages of a target's handler for CUDA. What XLA's CPU client is to call in place of the first comes into
// `instantiate`, and in place of the others into `execute`. Returns 0: there are too many. Not thread-safe.
extern "C" __attribute__((visibility("default"))) int epd_fake_xla_cuda_target(
    int devices, Handler** instantiate, Handler* initialize, Handler** execute) {
  static constexpr auto kHandlers = Handlers(std::make_index_sequence<kMostTargets>());
  if (num_targets == kMostTargets) return 0;
  num_devices = devices;
  targets[num_targets] = {*instantiate, initialize, *execute};
  std::tie(*instantiate, *execute) = kHandlers[num_targets++];
  return 1;
}
