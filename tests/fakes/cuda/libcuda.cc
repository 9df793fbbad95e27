// A libcuda.so.1 without a GPU: the fake driver behind cuGetProcAddress, told by EPD_FAKE_CUDA what to
// be, as words: devices=2 shows=1,0 mig=1 mode=3 connections=1 compute=8.0 vmm=0 fd=0 ipc=0 memops=0 waits=0 peer=0 nopeer=0-1 mps=1 version=12040
// missing=cuMemCreate missing=all stub=1 work=1 fails=cuMemCreate:2 exit=cuInit abort=cuInit hang=cuInit.
//
// Its streams run by themselves, kernels on the CPU from the same source. EPD_FAKE_CUDA_FOLDER is a folder
// where it looks for what is to happen next, and takes the file away: "poison" (a kernel's illegal access),
// "stall" (streams stop for good), of any device, or of the process that works on device 1 "poison.1";
// and where it writes each broken rule, into "violations", the name of each kernel that a process has run, into "launched", and of each
// context that is retained the program and the device, into "contexts"; told work=1, also what each process's streams do, in the
// order in which it is done, into "work": "PID PROGRAM DEVICE kernel NAME", "... wait", "... write", "... copy BYTES", "... fill BYTES".
//
// Programs of the name of epd's worker are held to what a worker has to do beyond a client.
#include "tests/fakes/cuda/libcuda.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/fakes/cuda/host_run.h"

namespace {

using epd::cuda::FakeDriver;
using epd::cuda::FakeMachine;

std::map<std::string, std::string> Words() {
  const char* text = std::getenv("EPD_FAKE_CUDA");
  std::istringstream stream(text == nullptr ? "" : text);
  std::map<std::string, std::string> words;
  for (std::string word; stream >> word;) {
    const size_t equals = word.find('=');
    words[word.substr(0, equals)] = equals == std::string::npos ? "1" : word.substr(equals + 1);
  }
  return words;
}

bool IsWorker() { return std::strcmp(program_invocation_short_name, "epd-worker") == 0; }

FakeMachine MachineOf(const std::map<std::string, std::string>& words) {
  const auto number = [&words](const char* name, int otherwise) {
    const auto found = words.find(name);
    return found == words.end() ? otherwise : std::atoi(found->second.c_str());
  };
  FakeMachine machine;
  machine.num_devices = number("devices", 1);
  machine.driver_version = number("version", machine.driver_version);
  if (const auto found = words.find("compute"); found != words.end()) {
    machine.compute_major = std::atoi(found->second.c_str());
    machine.compute_minor = std::atoi(found->second.substr(found->second.find('.') + 1).c_str());
  }
  machine.virtual_memory = number("vmm", 1) != 0;
  machine.posix_descriptors = number("fd", 1) != 0;
  machine.legacy_ipc = number("ipc", 1) != 0;
  machine.stream_memory_operations = number("memops", 1) != 0;
  machine.waits_end = number("waits", 1) != 0;
  machine.peer_access = number("peer", 1) != 0;
  // One pair, in that direction alone.
  int device = 0;
  int peer = 0;
  if (const auto found = words.find("nopeer");
      found != words.end() && std::sscanf(found->second.c_str(), "%d-%d", &device, &peer) == 2) {
    machine.no_peer_access.insert({device, peer});
  }
  machine.mps = number("mps", 0) != 0;
  machine.mig = number("mig", 0) != 0;
  machine.compute_mode = number("mode", machine.compute_mode);
  if (const auto found = words.find("shows"); found != words.end()) {
    std::istringstream list(found->second);
    for (std::string one; std::getline(list, one, ',');)
      machine.shown.push_back(std::atoi(one.c_str()));
  }
  machine.with_runtime = false;
  machine.maps_beside_work = !IsWorker();
  return machine;
}

// As CUDA's documentation of CUDA_DEVICE_MAX_CONNECTIONS has it: from 1 to 32 queues of the device, 8 where nothing is said; read
// by cuInit. Streams that share one wait for each other.
int Connections() {
  const char* said = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return said == nullptr ? 8 : std::clamp(std::atoi(said), 1, 32);
}

// Between two looks at a device a worker sleeps for 20 us, which the kernel makes 70 unless it is told.
bool WakesInTime() { return prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) <= 1000; }

void EndAt(const std::map<std::string, std::string>& words, const std::string& symbol) {
  const auto is = [&](const char* how) {
    const auto found = words.find(how);
    return found != words.end() && found->second == symbol;
  };
  if (is("exit")) std::exit(EXIT_FAILURE);
  if (is("abort")) std::abort();
  while (is("hang")) pause();
}

struct Loaded {
  std::map<std::string, std::string> words = Words();
  FakeDriver driver{MachineOf(words)};

  std::string folder = Folder();
  std::set<std::string> launched;
  std::set<int> held;
  int connections = 0;  // Since cuInit.
  std::atomic<bool> told_queues = false;
  std::atomic<bool> slept = false;

  static std::string Folder() {
    const char* folder = std::getenv("EPD_FAKE_CUDA_FOLDER");
    return folder == nullptr ? "" : folder;
  }

  // In the mode in which one process alone has a device, whoever has come first has it for as long as it lives.
  bool MayHave(int device) {
    const int mode = MachineOf(words).compute_mode;
    if (mode != epd::cuda::kComputeModeExclusiveProcess || folder.empty()) return true;
    if (held.count(device) > 0) return true;
    const std::string file = folder + "/held." + std::to_string(device);
    const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) return false;
    held.insert(device);
    return true;
  }

  // Once for each time that somebody makes the file.
  bool Told(const std::string& what) const {
    if (folder.empty()) return false;
    const std::string file = folder + "/" + what;
    return unlink(file.c_str()) == 0 ||
           unlink((file + "." + std::to_string(driver.device())).c_str()) == 0;
  }

  // By the thread that runs the streams.
  void NoteLaunch(const char* kernel) {
    if (launched.insert(kernel).second) Write("launched", kernel);
  }
  void Write(const char* file, const std::string& line) const {
    if (!folder.empty()) std::ofstream(folder + "/" + file, std::ios::app) << line + "\n";
  }
  void NoteWork(const epd::cuda::FakeWork& work) {
    using Kind = epd::cuda::FakeWork::Kind;
    static constexpr const char* kNames[] = {"kernel", "wait", "write", "copy", "fill"};
    // One file of all processes; a line is appended whole.
    std::ostringstream line;
    line << getpid() << " " << program_invocation_short_name << " " << work.device << " "
         << kNames[static_cast<int>(work.kind)];
    if (work.kind == Kind::kKernel) line << " " << work.kernel;
    if (work.kind == Kind::kCopy || work.kind == Kind::kFill) line << " " << work.bytes;
    Write("work", line.str());
  }
  void Note(const std::string& broken) const {
    std::fprintf(stderr, "fake CUDA driver: broken rule: %s\n", broken.c_str());
    Write("violations", broken);
  }

  void Run() {
    while (!Told("stall")) {
      if (Told("poison")) driver.Poison(epd::cuda::kIllegalAddress);
      driver.RunStreams();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Loaded() {
    for (int i = 0; i < epd::cuda::NumKernels(); ++i) {
      const epd::cuda::KernelShape shape = epd::cuda::KernelAt(i);
      driver.SetKernel(
          shape.name,
          [this, shape](void** arguments) {
            NoteLaunch(shape.name);
            if (!RunOnHost(shape, arguments[0], epd::cuda::HostOrder::kForward)) std::abort();
          },
          shape.args_bytes);
    }
    driver.OnViolation([this](const std::string& what) { Note(what); });
    driver.OnRetain([this](epd::cuda::Device device) {
      if (!MayHave(device)) return false;
      Write("contexts", std::string(program_invocation_short_name) + " " + std::to_string(device));
      return true;
    });
    if (words.contains("work")) {
      driver.OnWork([this](const epd::cuda::FakeWork& work) { NoteWork(work); });
    }
    driver.RunApart();
    std::thread([this] { Run(); }).detach();
    driver.OnCall([this](const std::string& symbol) {
      if (symbol == "cuInit" && connections == 0) {
        const auto said = words.find("connections");
        connections = said == words.end() ? Connections() : std::atoi(said->second.c_str());
        driver.SetConnections(connections);
      }
      // Whoever only looks what there is has no streams.
      if (symbol == "cuStreamCreate" && IsWorker() && connections != 32 &&
          !told_queues.exchange(true)) {
        Note("cuInit: CUDA_DEVICE_MAX_CONNECTIONS was not 32");
      }
      if (symbol == "cuEventQuery" && IsWorker() && !WakesInTime() && !slept.exchange(true)) {
        Note("cuEventQuery: by a thread that sleeps longer than it asks");
      }
      EndAt(words, symbol);
    });
    if (const auto found = words.find("fails"); found != words.end()) {
      const size_t colon = found->second.find(':');
      driver.Fail(found->second.substr(0, colon), std::atoi(found->second.c_str() + colon + 1), 0,
                  1 << 30);
    }
  }
};

Loaded& Library() {
  static Loaded& loaded = *new Loaded;
  return loaded;
}

}  // namespace

FakeDriver& epd::cuda::FakeOfLibrary() { return Library().driver; }

// For the fake NCCL: an operation of a stream, and how to get rid of it.
extern "C" __attribute__((visibility("default"))) void epd_fake_put(epd::cuda::Stream stream,
                                                                    bool (*run)(void*),
                                                                    void (*free)(void*),
                                                                    void* state) {
  const std::shared_ptr<void> owned(state, free);
  const auto go = [run, owned] { return run(owned.get()); };
  if (Library().driver.Put(stream, go) != epd::cuda::kSuccess) std::abort();
}

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol,
                                                                          void** function, int,
                                                                          uint64_t, int* status) {
  Loaded& loaded = Library();
  const auto missing = loaded.words.find("missing");
  const bool lacks =
      missing != loaded.words.end() && (missing->second == symbol || missing->second == "all");
  if (loaded.words.count("stub") > 0) {
    *function = nullptr;
    return epd::cuda::kStubLibrary;
  }
  *function = lacks ? nullptr : loaded.driver.Find(symbol);
  *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? 500 : 0;
}

// What tests/gpu/machine.py asks a driver by name. The programs of tests/gpu need more: program_calls.cc.
namespace {

template <typename... Arguments>
int Forward(const char* symbol, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  return reinterpret_cast<Function>(Library().driver.Find(symbol))(arguments...);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned flags) {
  return Forward("cuInit", flags);
}
extern "C" __attribute__((visibility("default"))) int cuDeviceGetCount(int* count) {
  return Forward("cuDeviceGetCount", count);
}
extern "C" __attribute__((visibility("default"))) int cuDeviceGetAttribute(int* value,
                                                                           int attribute,
                                                                           int device) {
  return Forward("cuDeviceGetAttribute", value, attribute, device);
}
