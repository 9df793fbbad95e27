// Replaces the program of this process by another one, in place: asks the other one first, in a process of its own,
// whether it can take over.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/process/spawn.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// What a program is started with to answer a HandoverHeader on descriptor 3 by a HandoverVerdict.
inline constexpr char kHandoverCheckFlag[] = "--handover-check";

// Whether epd, of `own_uid`, may run the file in its place.
//   INVALID_ARGUMENT   no absolute path
//   NOT_FOUND          no file, or not executable
//   PERMISSION_DENIED  others than root and the own user could have written it
absl::Status CheckProgram(const std::string& program, uid_t own_uid);

//   NONE --Begin()--> ASKING --the program can--> DUE --exec fails--> NONE
//                        +--it cannot, or says nothing in time--> NONE
// Control thread.
class Replacement {
 public:
  struct Request {
    std::string program;  // Empty: Options::program.
    std::string by;       // Who asked, for the log.
  };
  // Told once whether it is about to happen, with the new program's verdict.
  using Done = std::function<void(const absl::StatusOr<v1::HandoverVerdict>&)>;
  // Carries it out between two turns of the loop; returns only if it fails.
  using Exec = std::function<absl::Status(const Request&)>;

  // `loop` outlives this.
  explicit Replacement(EventLoop& loop) : loop_(loop) {}
  ~Replacement() { Forget(); }

  struct Options {
    std::string program;            // Where nobody names another one: that of this process.
    std::vector<std::string> args;  // Of this process, and of the next program.
    v1::HandoverHeader header;
    Exec exec;
  };
  void Set(Options options) { options_ = std::move(options); }

  //   ABORTED            one is on its way already
  //   DEADLINE_EXCEEDED  the program did not answer
  //   INTERNAL           it ended without an answer: no epd, or one that knows nothing of this
  //   or as CheckProgram, or what the program says
  void Begin(Request request, Done done);

  // Gives up on a program that does not answer.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // It is time to Run(): the answer has had time to leave.
  bool IsDue(absl::Time now) const { return now >= due_; }
  void Run();

 private:
  void OnVerdict();
  void OnExit();
  void Refuse(const absl::Status& why);
  // Kills and reaps the process that was asked.
  void Forget();

  EventLoop& loop_;
  Options options_;
  std::optional<Request> request_;
  Done done_;
  std::optional<Child> child_;
  UniqueFd socket_;
  absl::Time patience_ends_ = absl::InfiniteFuture();
  absl::Time due_ = absl::InfiniteFuture();
};

}  // namespace epd
