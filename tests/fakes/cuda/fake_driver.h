// A CUDA driver without a GPU: records every call, fails on command, runs streams step by step, and
// notes each call that breaks a rule of order.
//
// Device memory is a memfd, mapped where the driver would map it, so that bytes, exported descriptors
// and IPC handles work between processes. One at a time per process acts behind the function pointers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

struct FakeMachine {
  int num_devices = 1;
  int driver_version = 13000;
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessors = 132;
  int max_shared_bytes = 227 << 10;
  uint64_t device_bytes = uint64_t{8} << 30;
  bool virtual_memory = true;
  bool posix_descriptors = true;
  bool legacy_ipc = true;
  bool stream_memory_operations = true;
  bool waits_end = true;  // False: the device never sees what a CPU writes.
  bool peer_access = true;
  // Pairs of devices without it, although others have it.
  std::set<std::pair<int, int>> no_peer_access = {};

  bool CanAccess(int device, int peer) const {
    return device == peer || (peer_access && !no_peer_access.contains({device, peer}));
  }
  bool mps = false;
  int compute_mode = 0;  // CU_COMPUTEMODE_DEFAULT.
  bool mig = false;      // What there are are instances of divided GPUs.
  // Of the machine's devices those that this process is shown, in its order; none: all, in the machine's.
  std::vector<int> shown = {};
  // Hardware queues, over which the streams are spread as they are made. What waits in one holds up whatever was put behind it, into
  // whichever stream: so an H200 stood still with CUDA_DEVICE_MAX_CONNECTIONS=1, and two ranks.
  int connections = 32;
  bool rdma = false;         // Network cards reach memory of cuMemCreate.
  bool rdma_memory = true;   // False: so the driver says, and makes none.
  bool with_runtime = true;  // runtime_take_last_error is there.
  // Memory is mapped and unmapped beside work in streams, as a client does: its kernels look at an answer before they touch
  // any. What touches unmapped memory faults in any case.
  bool maps_beside_work = false;
};

// Something that a stream does.
struct FakeWork {
  enum class Kind { kKernel, kWait, kWrite, kCopy, kFill };

  Kind kind = Kind::kKernel;
  Device device = 0;        // Whose stream it is.
  std::string kernel = {};  // Its name, of a kernel.
  uint64_t bytes = 0;       // Copied or filled.
};

// Of the memfd that is memory of the device `home`; nothing else can be imported.
std::string FakeMemoryName(int home);

class FakeDriver {
 public:
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;

  // What a kernel does when its turn comes; it gets the `arguments` of the launch, or, set with
  // args_bytes, one argument that was copied at the launch, as a driver does.
  using Kernel = std::function<void(void** arguments)>;

  explicit FakeDriver(FakeMachine machine = {});
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  const DriverTable& table() const { return table_; }
  // The function of a symbol, as cuGetProcAddress gives it; null: this machine's driver has none.
  void* Find(const std::string& symbol) const;

  // Calls number `skip` and the `times` - 1 after it return `code` and do nothing. "" names all.
  void Fail(const std::string& symbol, Result code, int skip = 0, int times = 1);
  // Every call from now on returns `code`, as after an illegal access in a kernel.
  void Poison(Result code);
  void SetKernel(const std::string& name, Kernel kernel, size_t args_bytes = 0);
  // Runs before each call; a test or the shared library may end the process there.
  void OnCall(std::function<void(const std::string& symbol)> hook);
  // Runs before each thing that a stream does, and behind each wait of it.
  void OnWork(std::function<void(const FakeWork& work)> hook);
  // Runs for each context that is retained, with the machine's number of the device. False: somebody else has it in a mode in which
  // nobody else may.
  void OnRetain(std::function<bool(Device device)> hook);

  // Puts an operation of somebody else (a communicator) into a stream. It is asked again until it is
  // through; whoever is at the other end may never come, so nothing may wait for the device meanwhile.
  Result Put(Stream stream, std::function<bool()> run);
  // Runs what the streams can run; returns how many operations are left.
  int RunStreams();
  // From now on only RunStreams runs streams, and no call does by the way: as a device that works by
  // itself, on a thread that calls RunStreams again and again.
  void RunApart();
  // From now on whoever puts something into a stream that has `max_operations` left is held up until there is room, as by a
  // driver that has no room for more launches. 0: there is always room.
  void LimitStream(Stream stream, size_t max_operations);
  // Calls that are held up now.
  int num_held_up() const;
  // As cuInit reads it of CUDA_DEVICE_MAX_CONNECTIONS: of streams that are made from now on.
  void SetConnections(int connections);
  // Runs as soon as a rule is broken.
  void OnViolation(std::function<void(const std::string& what)> hook);

  std::vector<std::string> calls() const;
  int CountCalls(const std::string& symbol) const;
  // "cuMemUnmap: 1 stream has work left", one per broken rule, in order.
  std::vector<std::string> violations() const;
  // What was made and not given back: "1 stream, 2 allocations"; "" when nothing.
  std::string Leaks() const;
  uint64_t used_bytes() const;
  // Of memory_create, made for network cards too.
  uint64_t rdma_bytes() const;
  // The device whose context this process retained last; -1: none.
  int device() const;

 private:
  struct Allocation {
    int fd = -1;
    uint64_t bytes = 0;
    int home = 0;  // The device whose memory it is.
    bool imported = false;
    bool exportable = false;
  };
  struct Mapping {
    MemoryHandle handle = 0;  // 0: of memory_allocate or ipc_open_handle.
    uint64_t bytes = 0;
    int fd = -1;
    int home = 0;
    bool imported = false;  // Another process counts the bytes.
    bool accessible = false;
    bool opened = false;  // By ipc_open_handle.
  };
  struct StreamOperation {
    bool is_wait = false;
    std::function<bool()> run;  // False: not yet.
    uint64_t number = 0;        // In the order in which all were put.
  };
  struct StreamState {
    Device device = 0;  // Of the context that was current when it was made.
    std::deque<StreamOperation> operations;
    size_t max_operations = 0;
    int queue = 0;
  };
  struct FunctionState {
    std::string name;
    unsigned max_shared_bytes = 48 << 10;  // Dynamic; more of it only where it was asked for.
  };
  struct EventState {
    bool reached = true;
    uint64_t recorded = 0;
  };
  struct Failure {
    Result code = 0;
    int skip = 0;
    int times = 0;
  };
  enum Rule : unsigned {
    kFree = 0,
    kNeedsContext = 1,
    kMayBlock = 2,   // Waits for the device: never behind a pending wait.
    kTakesAway = 4,  // What work in a stream may still use.
  };

  static FakeDriver& Get();
  int NumShown() const {
    return machine_.shown.empty() ? machine_.num_devices : static_cast<int>(machine_.shown.size());
  }
  // The machine's number of one that this process is shown.
  int MachineNumber(Device device) const {
    return machine_.shown.empty() ? device : machine_.shown.at(static_cast<size_t>(device));
  }
  void FillTable();
  void FillMemoryCalls();
  void FillSharingCalls();
  void FillStreamCalls();
  void FillWorkCalls();
  // Records the call and checks its rules; a code other than kSuccess is to be returned.
  Result Enter(const char* symbol, unsigned rules);
  Result Injected(const std::string& symbol);
  void Violation(const std::string& symbol, const std::string& what);
  unsigned MappingRules(unsigned rules) const {
    return machine_.maps_beside_work ? unsigned{kNeedsContext} : kNeedsContext | rules;
  }
  int RunLocked();
  void RunUnlessApart() {
    if (!runs_apart_) RunLocked();
  }
  // Of the calling thread's current context.
  static Device& CurrentDevice();
  int PendingWaits() const;
  int BusyStreams() const;
  // `home`: the device; whoever imports it, in whichever process, knows.
  int MakeMemory(uint64_t bytes, int home);
  Result Enqueue(Stream stream, StreamOperation operation);
  // Tells whoever counts; `work.device` is filled in here.
  void Did(Stream stream, FakeWork work) const;
  void AwaitRoom(const StreamState& stream);
  // Nothing that was put before the stream's first operation is left in its hardware queue.
  bool IsFirstOfQueue(const StreamState& stream) const;

  const FakeMachine machine_;
  DriverTable table_;
  std::map<std::string, void*> symbols_;
  mutable std::recursive_mutex mutex_;
  std::function<void(const std::string&)> hook_;
  std::function<void(const FakeWork&)> work_hook_;
  std::function<bool(Device)> retain_hook_;
  std::function<void(const std::string&)> violation_hook_;
  bool runs_apart_ = false;
  int connections_;
  int num_held_up_ = 0;
  std::map<std::string, Failure> failures_;
  Result poison_ = kSuccess;
  std::vector<std::string> calls_;
  std::vector<std::string> violations_;
  bool owes_last_error_ = false;

  bool initialised_ = false;
  int retained_ = 0;
  int device_ = -1;
  bool current_ = false;
  uint64_t used_bytes_ = 0;
  uint64_t rdma_bytes_ = 0;
  uint64_t next_ = 1;
  uint64_t num_put_ = 0;
  std::map<Device, int> num_streams_made_;
  std::map<MemoryHandle, Allocation> handles_;
  std::map<DevicePointer, uint64_t> reserved_;
  std::map<DevicePointer, Mapping> mapped_;
  std::map<void*, uint64_t> registered_;
  std::map<Stream, StreamState> streams_;
  std::map<Event, EventState> events_;
  std::set<Module> modules_;
  std::map<std::string, Kernel> kernels_;
  std::map<std::string, size_t> args_bytes_;
  std::map<Function, FunctionState> functions_;
};

}  // namespace epd::cuda
