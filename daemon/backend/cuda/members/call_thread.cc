#include "daemon/backend/cuda/members/call_thread.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/check.h"

namespace epd::cuda {

struct CallThread::Shared {
  absl::Mutex mutex;
  std::function<absl::Status()> call ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> result ABSL_GUARDED_BY(mutex);
  bool stop ABSL_GUARDED_BY(mutex) = false;

  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stop || call != nullptr; }

  void Run() {
    for (;;) {
      std::function<absl::Status()> next;
      {
        absl::MutexLock lock(&mutex);
        mutex.Await(absl::Condition(this, &Shared::HasNews));
        if (stop) return;
        next = std::exchange(call, nullptr);
      }
      absl::Status done = next();
      absl::MutexLock lock(&mutex);
      result = std::move(done);
    }
  }
};

CallThread::CallThread() : shared_(std::make_shared<Shared>()) {}

CallThread::~CallThread() {
  bool idle = !open_;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->stop = true;
    idle = idle || shared_->result.has_value();
  }
  if (!thread_.joinable()) return;
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void CallThread::Post(std::function<absl::Status()> call) {
  EPD_CHECK(!open_);
  open_ = true;
  const int error = thread_.joinable()
                        ? 0
                        : StartThread(
                              {"epd-calls"}, [shared = shared_] { shared->Run(); }, &thread_);
  absl::MutexLock lock(&shared_->mutex);
  if (error == 0) {
    shared_->call = std::move(call);
  } else {
    shared_->result = absl::ResourceExhaustedError(WhyNoThread("epd-calls", error));
  }
}

std::optional<absl::Status> CallThread::Take() {
  absl::MutexLock lock(&shared_->mutex);
  if (!shared_->result.has_value()) return std::nullopt;
  open_ = false;
  return std::exchange(shared_->result, std::nullopt);
}

}  // namespace epd::cuda
