#include "daemon/worker/peer_streams/stream_loop.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "daemon/worker/shell/thread_slice.h"

namespace epd {
namespace {

// In one direction.
int NumBulkThreads() {
  constexpr int kCoresEach = 4;
  constexpr int kMost = 4;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / kCoresEach, 1, kMost);
}

}  // namespace

StreamLoop::StreamLoop(Carries what, const char* name, std::unique_ptr<grpc::CompletionQueue> queue)
    : what_(what), name_(name), queue_(std::move(queue)) {}

absl::Status StreamLoop::Start() {
  const int num_threads = what_ == Carries::kBulk ? NumBulkThreads() : 1;
  for (int i = 0; i < num_threads; ++i) {
    Thread thread;
    const int error = StartThread(
        {name_}, [this] { Serve(); }, &thread);
    if (error != 0) return absl::ResourceExhaustedError(WhyNoThread(name_, error));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

StreamLoop::~StreamLoop() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_streams_ == 0; });
  }
  queue_->Shutdown();
  for (Thread& thread : threads_) thread.join();
  // Of gRPC a queue must be empty at its end, which it is found to be by whoever asks for the next event.
  void* event = nullptr;
  bool ok = false;
  while (threads_.empty() && queue_->Next(&event, &ok)) continue;
}

void StreamLoop::Began() {
  const std::lock_guard lock(mutex_);
  ++num_streams_;
}

void StreamLoop::Over() {
  const std::lock_guard lock(mutex_);
  if (--num_streams_ == 0) changed_.notify_all();
}

void StreamLoop::Await(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [this] { return num_streams_ == 0; });
}

void StreamLoop::Serve() {
  if (what_ == Carries::kBulk) {
    YieldToOthers();
  } else {
    TakeShortSlices();
  }
  void* event = nullptr;
  bool ok = false;
  while (queue_->Next(&event, &ok)) static_cast<StreamEvent*>(event)->Happened(ok);
}

void GiveEachLoopItsThreads() {
  constexpr int kKeepWhatIsSet = 0;
  setenv("GRPC_POLL_STRATEGY", "poll", kKeepWhatIsSet);
}

void KeepLibrariesQuiet() {
  if (getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  // What does not parse ends the stream that it came by, with a reason.
  google::protobuf::SetLogHandler(nullptr);
}

}  // namespace epd
