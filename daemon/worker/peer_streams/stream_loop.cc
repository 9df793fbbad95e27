#include "daemon/worker/peer_streams/stream_loop.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
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

StreamLoop::StreamLoop(Carries what, std::string name, std::unique_ptr<grpc::CompletionQueue> queue)
    : what_(what), name_(std::move(name)), queue_(std::move(queue)) {
  const int num_threads = what == Carries::kBulk ? NumBulkThreads() : 1;
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Serve(); });
}

StreamLoop::~StreamLoop() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_streams_ == 0; });
  }
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
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
  pthread_setname_np(pthread_self(), name_.c_str());
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
