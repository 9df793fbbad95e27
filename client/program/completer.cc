#include "client/program/completer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/machine/thread.h"

namespace epd::program {
namespace {

constexpr std::chrono::seconds kIdleLifetime{30};

}  // namespace

Completer& Completer::Shared() {
  // A forked child has none of its parent's threads and gets its own object.
  static client::Mutex mutex;
  static Completer* completer = nullptr;
  static pid_t owner = 0;
  const client::MutexLock lock(mutex);
  if (owner != getpid()) {
    completer = new Completer;
    owner = getpid();
  }
  return *completer;
}

client::Status Completer::Run(std::function<void()> work) {
  {
    const client::MutexLock lock(mutex_);
    if (!idle_.empty()) {
      Worker* const worker = idle_.back();
      idle_.pop_back();
      worker->work = std::move(work);
      worker->wake.NotifyAll();
      return {};
    }
    ++num_threads_;
  }
  const int error =
      StartDetached({"epd-op", ThreadSignals::kNone},
                    [this, work = std::move(work)]() mutable { Loop(std::move(work)); });
  if (error == 0) return {};
  const client::MutexLock lock(mutex_);
  --num_threads_;
  return {client::Code::kResourceExhausted, WhyNoThread("epd-op", error)};
}

void Completer::Loop(std::function<void()> work) {
  Worker self;
  while (true) {
    work();
    work = nullptr;  // Drops what it captured before this thread sleeps.
    const client::MutexLock lock(mutex_);
    idle_.push_back(&self);
    self.wake.WaitUntil(mutex_, std::chrono::steady_clock::now() + kIdleLifetime,
                        [&] { return self.work != nullptr; });
    if (self.work == nullptr) {
      idle_.erase(std::find(idle_.begin(), idle_.end(), &self));
      --num_threads_;
      return;
    }
    work = std::exchange(self.work, nullptr);
  }
}

std::size_t Completer::num_threads() const {
  const client::MutexLock lock(mutex_);
  return num_threads_;
}

}  // namespace epd::program
