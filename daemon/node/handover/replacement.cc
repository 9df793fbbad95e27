#include "daemon/node/handover/replacement.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/codec/codec.h"
#include "daemon/observe/log.h"
#include "daemon/packet/packet.h"

namespace epd {
namespace {

// A program that reads its settings and answers takes some ten ms.
constexpr absl::Duration kPatience = absl::Seconds(10);
// The answer to whoever asked leaves in this time; if not, he sees the connection end, and looks.
constexpr absl::Duration kAnswerLeaves = absl::Milliseconds(50);

}  // namespace

absl::Status CheckProgram(const std::string& program, uid_t own_uid) {
  if (program.empty() || program[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("program: got '", program, "', expected an absolute path of an epd"));
  }
  struct stat file = {};
  if (stat(program.c_str(), &file) != 0 || !S_ISREG(file.st_mode) ||
      access(program.c_str(), X_OK) != 0) {
    const std::string why =
        S_ISREG(file.st_mode) || file.st_mode == 0 ? std::strerror(errno) : "it is no file";
    return absl::NotFoundError(absl::StrCat("program: cannot run '", program, "': ", why,
                                            "; give the path of an epd that may be executed"));
  }
  const bool trusted = file.st_uid == 0 || file.st_uid == own_uid;
  if (trusted && (file.st_mode & (S_IWGRP | S_IWOTH)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "program: '%s' belongs to uid %d and has mode %04o, expected one of root or of uid %d that "
      "nobody else may write; install it so",
      program, file.st_uid, file.st_mode & 07777, own_uid));
}

void Replacement::Begin(Request request, Done done) {
  if (request.program.empty()) request.program = options_.program;
  if (request_.has_value()) {
    return done(absl::AbortedError(absl::StrCat("epd is being replaced by '", request_->program,
                                                "' already; look again in a moment")));
  }
  if (absl::Status bad = CheckProgram(request.program, geteuid()); !bad.ok()) return done(bad);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    return done(absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno))));
  socket_.reset(pair[0]);
  const UniqueFd theirs(pair[1]);
  std::vector<std::string> args = options_.args;
  args.push_back(kHandoverCheckFlag);
  const absl::StatusOr<SendResult> sent =
      SendPacket(pair[0], options_.header.SerializeAsString(), {});
  absl::StatusOr<Child> child = Spawn(request.program, args, theirs.get());
  absl::Status asked = child.status();
  asked.Update(sent.status());
  if (child.ok()) child_.emplace(*std::move(child));
  if (asked.ok()) asked = loop_.Add(socket_.get(), EPOLLIN, [this](uint32_t) { OnVerdict(); });
  if (asked.ok()) {
    asked = loop_.Add(child_->pidfd.get(), EPOLLIN, [this](uint32_t) { OnExit(); });
  }
  if (!asked.ok()) {
    Forget();
    return done(asked);
  }
  request_ = std::move(request);
  done_ = std::move(done);
  patience_ends_ = MonotonicNow() + kPatience;
}

void Replacement::OnVerdict() {
  bool would_block = false;
  const absl::StatusOr<Packet> packet = ReceivePacket(socket_.get(), &would_block);
  if (would_block) return;
  if (!packet.ok()) {  // The pidfd tells how it has ended.
    loop_.Remove(socket_.get());
    socket_.reset();
    return;
  }
  v1::HandoverVerdict verdict;
  if (!verdict.ParseFromString(packet->bytes)) {
    return Refuse(absl::InternalError(
        absl::StrCat("'", request_->program, "' answers with ", packet->bytes.size(),
                     " bytes that are no HandoverVerdict; is it an epd?")));
  }
  if (const absl::Status status = FromProto(verdict.status()); !status.ok()) return Refuse(status);
  Forget();
  patience_ends_ = absl::InfiniteFuture();
  due_ = MonotonicNow() + kAnswerLeaves;
  std::exchange(done_, nullptr)(verdict);
}

void Replacement::OnExit() {
  if (socket_.valid()) OnVerdict();  // It may have answered first.
  if (!child_.has_value()) return;
  const std::string how = Reap(*child_);
  if (how.empty()) return;
  Refuse(absl::InternalError(absl::StrCat("'", request_->program, "' ", how,
                                          " and did not say whether it can take over; its last "
                                          "words are on epd's standard error, is it an epd that "
                                          "can replace another one?")));
}

void Replacement::Refuse(const absl::Status& why) {
  Forget();
  patience_ends_ = absl::InfiniteFuture();
  request_.reset();
  std::exchange(done_, nullptr)(why);
}

void Replacement::Forget() {
  if (socket_.valid()) loop_.Remove(socket_.get());
  socket_.reset();
  if (!child_.has_value()) return;
  loop_.Remove(child_->pidfd.get());
  if (Reap(*child_).empty()) {
    syscall(SYS_pidfd_send_signal, child_->pidfd.get(), SIGKILL, nullptr, 0);
    waitpid(child_->pid, nullptr, 0);
  }
  child_.reset();
}

void Replacement::Tick(absl::Time now) {
  if (now < patience_ends_) return;
  Refuse(absl::DeadlineExceededError(absl::StrCat("'", request_->program, "' did not say within ",
                                                  absl::FormatDuration(kPatience),
                                                  " whether it can take over")));
}

absl::Time Replacement::NextDeadline() const { return std::min(patience_ends_, due_); }

void Replacement::Run() {
  due_ = absl::InfiniteFuture();
  const absl::Status failed = options_.exec(*request_);
  Log(LogLevel::kError, "epd is not replaced, and goes on",
      {{"program", request_->program}, {"by", request_->by}, {"why", failed.message()}});
  request_.reset();
}

}  // namespace epd
