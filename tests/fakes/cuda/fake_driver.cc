#include "tests/fakes/cuda/fake_driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd::cuda {
namespace {

FakeDriver* g_driver = nullptr;

}  // namespace

FakeDriver& FakeDriver::Get() {
  if (g_driver == nullptr) {
    std::fprintf(stderr, "a call to a CUDA driver, and no FakeDriver lives\n");
    std::abort();
  }
  return *g_driver;
}

FakeDriver::FakeDriver(FakeMachine machine) : machine_(machine), connections_(machine.connections) {
  if (g_driver != nullptr) {
    std::fprintf(stderr, "two FakeDrivers at a time\n");
    std::abort();
  }
  g_driver = this;
  FillTable();
  FillMemoryCalls();
  FillSharingCalls();
  FillStreamCalls();
  FillWorkCalls();
}

FakeDriver::~FakeDriver() {
  for (auto& [address, mapping] : mapped_) {
    munmap(reinterpret_cast<void*>(address), mapping.bytes);
    if (mapping.fd >= 0) close(mapping.fd);
  }
  for (auto& [address, bytes] : reserved_) munmap(reinterpret_cast<void*>(address), bytes);
  for (auto& [handle, allocation] : handles_) close(allocation.fd);
  g_driver = nullptr;
}

void* FakeDriver::Find(const std::string& symbol) const {
  const auto found = symbols_.find(symbol);
  return found == symbols_.end() ? nullptr : found->second;
}

void FakeDriver::Fail(const std::string& symbol, Result code, int skip, int times) {
  std::lock_guard lock(mutex_);
  failures_[symbol] = {.code = code, .skip = skip, .times = times};
}

void FakeDriver::Poison(Result code) {
  std::lock_guard lock(mutex_);
  poison_ = code;
}

void FakeDriver::SetKernel(const std::string& name, Kernel kernel, size_t args_bytes) {
  kernels_[name] = std::move(kernel);
  args_bytes_[name] = args_bytes;
}

void FakeDriver::OnCall(std::function<void(const std::string& symbol)> hook) {
  hook_ = std::move(hook);
}

void FakeDriver::OnWork(std::function<void(const FakeWork& work)> hook) {
  std::lock_guard lock(mutex_);
  work_hook_ = std::move(hook);
}

void FakeDriver::OnRetain(std::function<bool(Device device)> hook) {
  retain_hook_ = std::move(hook);
}

void FakeDriver::RunApart() { runs_apart_ = true; }

void FakeDriver::LimitStream(Stream stream, size_t max_operations) {
  std::lock_guard lock(mutex_);
  streams_[stream].max_operations = max_operations;
}

int FakeDriver::num_held_up() const {
  std::lock_guard lock(mutex_);
  return num_held_up_;
}

void FakeDriver::OnViolation(std::function<void(const std::string& what)> hook) {
  violation_hook_ = std::move(hook);
}

int FakeDriver::RunStreams() {
  std::lock_guard lock(mutex_);
  return RunLocked();
}

Result FakeDriver::Put(Stream stream, std::function<bool()> run) {
  std::lock_guard lock(mutex_);
  return Enqueue(stream, {true, std::move(run)});
}

int FakeDriver::RunLocked() {
  bool moved = true;
  int left = 0;
  while (moved) {
    moved = false;
    left = 0;
    for (auto& [stream, state] : streams_) {
      while (!state.operations.empty() && IsFirstOfQueue(state) && state.operations.front().run()) {
        state.operations.pop_front();
        moved = true;
      }
      left += static_cast<int>(state.operations.size());
    }
  }
  return left;
}

std::vector<std::string> FakeDriver::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

int FakeDriver::CountCalls(const std::string& symbol) const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(std::count(calls_.begin(), calls_.end(), symbol));
}

std::vector<std::string> FakeDriver::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

std::string FakeDriver::Leaks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> leaks;
  const auto add = [&leaks](size_t count, const char* what) {
    if (count > 0) leaks.push_back(absl::StrCat(count, " ", what, count > 1 ? "s" : ""));
  };
  add(handles_.size(), "handle");
  add(mapped_.size(), "mapping");
  add(reserved_.size(), "address range");
  add(registered_.size(), "registered page");
  add(streams_.size(), "stream");
  add(events_.size(), "event");
  add(modules_.size(), "module");
  add(static_cast<size_t>(std::max(retained_, 0)), "context");
  return absl::StrJoin(leaks, ", ");
}

int FakeDriver::device() const {
  std::lock_guard lock(mutex_);
  return device_;
}

uint64_t FakeDriver::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

uint64_t FakeDriver::rdma_bytes() const {
  std::lock_guard lock(mutex_);
  return rdma_bytes_;
}

int FakeDriver::PendingWaits() const {
  return static_cast<int>(std::count_if(streams_.begin(), streams_.end(), [](const auto& entry) {
    return !entry.second.operations.empty() && entry.second.operations.front().is_wait;
  }));
}

int FakeDriver::BusyStreams() const {
  return static_cast<int>(std::count_if(streams_.begin(), streams_.end(), [](const auto& entry) {
    return !entry.second.operations.empty();
  }));
}

void FakeDriver::Violation(const std::string& symbol, const std::string& what) {
  violations_.push_back(absl::StrCat(symbol, ": ", what));
  if (violation_hook_) violation_hook_(violations_.back());
}

Result FakeDriver::Injected(const std::string& symbol) {
  for (const std::string& name : {symbol, std::string()}) {
    const auto found = failures_.find(name);
    if (found == failures_.end() || found->second.times == 0) continue;
    if (found->second.skip-- > 0) continue;
    found->second.skip = 0;
    --found->second.times;
    return found->second.code;
  }
  return kSuccess;
}

Result FakeDriver::Enter(const char* symbol, unsigned rules) {
  calls_.push_back(symbol);
  if (hook_) hook_(symbol);
  if (owes_last_error_) {
    Violation(symbol, "the last error of a failed IPC call was not taken");
    owes_last_error_ = false;
  }
  RunUnlessApart();
  if ((rules & kMayBlock) != 0 && PendingWaits() > 0) {
    Violation(symbol, absl::StrCat("behind ", PendingWaits(), " pending wait"));
  }
  if ((rules & kTakesAway) != 0 && BusyStreams() > 0) {
    Violation(symbol, absl::StrCat(BusyStreams(), " stream has work left"));
  }
  if (poison_ != kSuccess) return poison_;
  if (const Result injected = Injected(symbol); injected != kSuccess) return injected;
  if (!initialised_ && std::strcmp(symbol, "cuInit") != 0 &&
      std::strcmp(symbol, "cuDriverGetVersion") != 0) {
    return 3;  // CUDA_ERROR_NOT_INITIALIZED
  }
  if ((rules & kNeedsContext) != 0 && !current_) return kInvalidContext;
  return kSuccess;
}

std::string FakeMemoryName(int home) { return absl::StrCat("fake-device-memory-", home); }

int FakeDriver::MakeMemory(uint64_t bytes, int home) {
  if (used_bytes_ + bytes > machine_.device_bytes) return -1;
  const int fd = memfd_create(FakeMemoryName(home).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return -1;
  // Clients of memfds insist on it, and here device memory is one.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return -1;
  used_bytes_ += bytes;
  return fd;
}

bool FakeDriver::IsFirstOfQueue(const StreamState& stream) const {
  return std::none_of(streams_.begin(), streams_.end(), [&](const auto& entry) {
    const StreamState& other = entry.second;
    return other.device == stream.device && other.queue == stream.queue &&
           !other.operations.empty() &&
           other.operations.front().number < stream.operations.front().number;
  });
}

void FakeDriver::SetConnections(int connections) {
  std::lock_guard lock(mutex_);
  connections_ = connections;
}

// The caller holds the mutex once.
void FakeDriver::AwaitRoom(const StreamState& stream) {
  ++num_held_up_;
  while (stream.max_operations > 0 && stream.operations.size() >= stream.max_operations) {
    mutex_.unlock();
    usleep(50);
    mutex_.lock();
  }
  --num_held_up_;
}

Result FakeDriver::Enqueue(Stream stream, StreamOperation operation) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return 400;  // CUDA_ERROR_INVALID_HANDLE
  AwaitRoom(found->second);
  operation.number = num_put_++;
  found->second.operations.push_back(std::move(operation));
  RunUnlessApart();
  return kSuccess;
}

void FakeDriver::Did(Stream stream, FakeWork work) const {
  if (!work_hook_) return;
  work.device = streams_.at(stream).device;
  work_hook_(work);
}

}  // namespace epd::cuda
