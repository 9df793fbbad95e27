// A stream that always sends the newest message, however slow its reader is.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace epd {

// `Reactor` is one of gRPC's that write `Message`. Thread-safe.
template <typename Reactor, typename Message>
class NewestWriter : public Reactor {
 public:
  // Sends `message`, or replaces one that has not gone out yet.
  void Offer(Message message) {
    Amend(Message(), [&](Message& next) { next = std::move(message); });
  }

  // Changes what has not gone out yet; when nothing waits, sends `fresh` with the change.
  template <typename Change>
  void Amend(Message fresh, Change change) {
    const absl::MutexLock lock(&mutex_);
    if (ending_) return;
    if (!next_.has_value()) next_ = std::move(fresh);
    change(*next_);
    if (!writing_) WriteNext();
  }

  // Ends the stream, where this is the server's side, once what was offered is out. False: it ends otherwise already.
  bool End(grpc::Status status) {
    const absl::MutexLock lock(&mutex_);
    if (ending_) return false;
    ending_ = true;
    status_ = std::move(status);
    if (!writing_) FinishIt();
    return true;
  }

  void OnWriteDone(bool ok) override {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && next_.has_value()) return WriteNext();
    if (!ok && !ending_) {
      ending_ = true;
      status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone");
    }
    if (ending_) FinishIt();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    current_ = *std::move(next_);
    next_.reset();
    writing_ = true;
    this->StartWrite(&current_);
  }

  void FinishIt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if constexpr (requires { this->Finish(grpc::Status()); }) this->Finish(status_);
  }

  absl::Mutex mutex_;
  std::optional<Message> next_ ABSL_GUARDED_BY(mutex_);
  Message current_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

// The server's side. The owner keeps the object until done(), because gRPC keeps a pointer.
template <typename Reactor, typename Message>
class ServedWriter : public NewestWriter<Reactor, Message> {
 public:
  void OnCancel() override {
    this->End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
  }

  // For one without another owner: `self` lives until gRPC is done with it. Before End().
  void KeepUntilDone(std::shared_ptr<ServedWriter> self) { self_ = std::move(self); }

  // The last thing that gRPC does with this object.
  void OnDone() override {
    done_.store(true, std::memory_order_release);
    const auto last = std::move(self_);
  }
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> done_{false};
  std::shared_ptr<ServedWriter> self_;
};

}  // namespace epd
