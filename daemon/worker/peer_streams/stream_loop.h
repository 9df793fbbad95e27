// The threads that serve the streams of one kind, in one direction.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "proto/machine/thread.h"

namespace epd {

// What a completion queue gives back.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  virtual void Happened(bool ok) = 0;
};

// Calls `method` of `object`, which outlives the operation.
template <typename Object>
class MethodEvent final : public StreamEvent {
 public:
  MethodEvent(Object* object, void (Object::*method)(bool)) : object_(object), method_(method) {}
  void Happened(bool ok) override { (object_->*method_)(ok); }

 private:
  Object* const object_;
  void (Object::*const method_)(bool);
};

enum class Carries { kSmall, kBulk };

// Small operations must not wait until a thread has sent or landed somebody's large rows. So kinds of streams
// share no threads: gRPC's own would serve all streams of the process. That holds as long as each
// thread polls only what belongs to its own queue; GiveEachLoopItsThreads().
class StreamLoop {
 public:
  // `name`: of its threads, at most 15 characters.
  StreamLoop(Carries what, const char* name, std::unique_ptr<grpc::CompletionQueue> queue);
  // Waits for the end of all streams.
  ~StreamLoop();
  StreamLoop(const StreamLoop&) = delete;
  StreamLoop& operator=(const StreamLoop&) = delete;

  // Once, before its queue has anything.
  //   RESOURCE_EXHAUSTED  threads
  absl::Status Start();

  grpc::CompletionQueue* queue() { return queue_.get(); }
  Carries carries() const { return what_; }
  // A stream has operations under way until it is over.
  void Began();
  void Over();
  // Until all streams are over, but for `most`.
  void Await(std::chrono::milliseconds most);

 private:
  void Serve();

  const Carries what_;
  const char* const name_;
  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_streams_ = 0;
  std::vector<Thread> threads_;
};

// Before anything else of gRPC: its default way to poll lets every thread handle every connection.
void GiveEachLoopItsThreads();
// gRPC's and protobuf's own lines would wait for whoever reads standard error; a stream's status says what matters of them.
void KeepLibrariesQuiet();

}  // namespace epd
