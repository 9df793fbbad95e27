// A thread for calls that may block for long, or for ever: one call at a time, and nobody waits for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "proto/machine/thread.h"

namespace epd::cuda {

// Used by one other thread. Nothing in here can end a call: whoever finds one late ends the process.
class CallThread {
 public:
  CallThread();
  // Leaves a call that is still open, with its thread, to the end of the process.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  // Begins it. None may be open. Where no thread can be had, its result is RESOURCE_EXHAUSTED, and it was not called.
  void Post(std::function<absl::Status()> call);
  // Whether one is open: posted, and its result not taken.
  bool open() const { return open_; }
  // The result, once, when it is there.
  std::optional<absl::Status> Take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  bool open_ = false;
  Thread thread_;  // From the first call on.
};

}  // namespace epd::cuda
