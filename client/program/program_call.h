// One call of a program, begun, made and ended; repeated where a node's daemon stops in order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "client/c/epd_client.h"
#include "client/program/epd_program.h"
#include "client/program/groups.h"

namespace epd::program {

// Used by one thread at a time, and made to its end.
class ProgramCall {
 public:
  // Makes the call by the C library. May return EPD_PENDING where it waits no longer than `wait_ns`; see epd_try.
  using Exchange = std::function<int(const ActiveCall& active, std::int64_t wait_ns,
                                     epd_pending** pending, epd_error* error)>;

  // What `call` points to stays until the call has ended.
  ProgramCall(Groups& groups, const epd_program_call& call, Exchange exchange)
      : groups_(groups), next_(call), exchange_(std::move(exchange)) {}

  // False: it has to wait, for other ranks for more than `wait_ns`, or for something else: go on with Finish.
  bool Try(std::int64_t wait_ns) { return GoOn(wait_ns); }
  Status Finish() {
    GoOn(/*wait_ns=*/-1);
    return status_;
  }
  // Once it has ended.
  const Status& status() const { return status_; }

 private:
  // Negative: for as long as it takes.
  bool GoOn(std::int64_t wait_ns);
  // The library's part of it. False: not yet.
  bool Make(std::int64_t wait_ns);

  Groups& groups_;
  epd_program_call next_;
  const Exchange exchange_;
  std::optional<ActiveCall> active_;
  epd_pending* pending_ = nullptr;
  std::optional<Status> made_;  // How the library's part has ended.
  Status status_;
};

}  // namespace epd::program
