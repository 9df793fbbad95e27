// The threads that serve the streams of one lane, in one direction.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace epd {

// What a completion queue gives back.
class LaneEvent {
 public:
  virtual ~LaneEvent() = default;
  virtual void Happened(bool ok) = 0;
};

// Calls `method` of `object`, which outlives the operation.
template <typename Object>
class MethodEvent final : public LaneEvent {
 public:
  MethodEvent(Object* object, void (Object::*method)(bool)) : object_(object), method_(method) {}
  void Happened(bool ok) override { (object_->*method_)(ok); }

 private:
  Object* const object_;
  void (Object::*const method_)(bool);
};

enum class Carries { kSmall, kBulk };

// Small operations must not wait until a thread has sent or landed somebody's large rows. So lanes
// share no threads: gRPC's own would serve all streams of the process. That holds as long as each
// thread polls only what belongs to its own queue; KeepLanesApart().
class LaneLoop {
 public:
  LaneLoop(Carries what, std::string name, std::unique_ptr<grpc::CompletionQueue> queue);
  // Waits for the end of all streams.
  ~LaneLoop();
  LaneLoop(const LaneLoop&) = delete;
  LaneLoop& operator=(const LaneLoop&) = delete;

  grpc::CompletionQueue* queue() { return queue_.get(); }
  Carries carries() const { return what_; }
  // A stream has operations under way until it is over.
  void Began();
  void Over();

 private:
  void Serve();

  const Carries what_;
  const std::string name_;
  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_streams_ = 0;
  std::vector<std::thread> threads_;
};

// Before anything else of gRPC: its default way to poll lets every thread handle every connection.
void KeepLanesApart();

}  // namespace epd
