#include "daemon/doctor/doctor_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/doctor/findings.h"

namespace epd {
namespace {

constexpr size_t kEnough = size_t{1} << 20;

}  // namespace

v1::GetDoctorResponse DoctorProcess::OnlyProblem(const std::string& problem) const {
  v1::GetDoctorResponse response;
  *response.add_findings() = unknown_;
  response.mutable_findings(0)->set_found(problem);
  return response;
}

void DoctorProcess::Ask(const std::string& argument, Done done) {
  waiting_.push_back(std::move(done));
  if (child_.has_value()) return;
  if (const absl::Status started = Start(argument); !started.ok())
    Finish(std::string(started.message()));
}

absl::Status DoctorProcess::Start(const std::string& argument) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  pipe_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  fcntl(theirs.get(), F_SETFL, 0);
  output_.clear();
  absl::StatusOr<Child> child = Spawn(worker_binary_, {argument}, theirs.get());
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  absl::Status watched = loop_.Add(pipe_.get(), EPOLLIN, [this](uint32_t) { Read(); });
  watched.Update(loop_.Add(child_->pidfd.get(), EPOLLIN, [this](uint32_t) { OnExit(); }));
  return watched;
}

// Takes what is there. At the end of the output the pipe is of no interest any more.
void DoctorProcess::Read() {
  char part[4096];
  while (pipe_.valid()) {
    const ssize_t got = read(pipe_.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0 && output_.size() < kEnough) {
      output_.append(part, static_cast<size_t>(got));
      continue;
    }
    loop_.Remove(pipe_.get());
    pipe_.reset();
  }
}

void DoctorProcess::OnExit() {
  Read();
  const std::string how = Reap(*child_);
  if (how.empty()) return;
  Finish(how == "exited with status 0"
             ? ""
             : absl::StrCat("the process that looks at this machine ", how));
}

void DoctorProcess::Finish(const std::string& problem) {
  if (pipe_.valid()) loop_.Remove(pipe_.get());
  pipe_.reset();
  if (child_.has_value()) loop_.Remove(child_->pidfd.get());
  child_.reset();
  v1::GetDoctorResponse response;
  if (!problem.empty()) {
    response = OnlyProblem(problem);
  } else if (!response.ParseFromString(output_)) {
    response = OnlyProblem("the process that looks at this machine said something else");
  }
  for (const Done& done : std::exchange(waiting_, {})) done(response);
}

void DoctorProcess::FinishAll() {
  if (child_.has_value()) {
    syscall(SYS_pidfd_send_signal, child_->pidfd.get(), SIGKILL, nullptr, 0);
    pollfd ended = {child_->pidfd.get(), POLLIN, 0};
    poll(&ended, 1, /*timeout=*/1000);
    Reap(*child_);
  }
  if (child_.has_value() || !waiting_.empty()) Finish("epd ends");
}

}  // namespace epd
