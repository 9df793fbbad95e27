#include "daemon/observe/log_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/machine/thread.h"

namespace epd {
namespace {

constexpr mode_t kMode = 0600;
// Once, before the descriptor counts as stuck.
constexpr absl::Duration kGrace = absl::Milliseconds(20);

// Where lines go. Only the writing thread touches it once it is in use.
struct Target {
  std::string path;  // "": standard error.
  int fd = STDERR_FILENO;
  dev_t device = 0;
  ino_t inode = 0;

  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    if (!path.empty() && fd >= 0) close(fd);
  }

  // Keeps what is open when it cannot.
  bool Open() {
    const int opened = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kMode);
    struct stat facts = {};
    if (opened < 0 || fstat(opened, &facts) != 0) return false;
    if (fd >= 0) close(fd);
    fd = opened;
    device = facts.st_dev;
    inode = facts.st_ino;
    return true;
  }
  bool IsThere() const {
    struct stat facts = {};
    return stat(path.c_str(), &facts) == 0 && facts.st_dev == device && facts.st_ino == inode;
  }

  // A line that cannot be written is lost: there is nowhere to say so.
  void Write(const std::string& line) {
    if (!path.empty() && !IsThere()) Open();
    for (size_t done = 0; done < line.size();) {
      const ssize_t wrote = write(fd, line.data() + done, line.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return;
      done += static_cast<size_t>(wrote);
    }
  }
};

struct Waiting {
  std::string line;
  std::shared_ptr<Target> target;
};

}  // namespace

struct LogWriter::State {
  explicit State(size_t most) : max_bytes(most) {}

  void Run();
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return lines.empty() && !writing; }

  const size_t max_bytes;
  absl::Mutex mutex;
  bool has_thread ABSL_GUARDED_BY(mutex) = true;
  std::shared_ptr<Target> target ABSL_GUARDED_BY(mutex) = std::make_shared<Target>();
  std::deque<Waiting> lines ABSL_GUARDED_BY(mutex);
  size_t num_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t num_dropped ABSL_GUARDED_BY(mutex) = 0;
  bool writing ABSL_GUARDED_BY(mutex) = false;
  bool stuck ABSL_GUARDED_BY(mutex) = false;
  bool ending ABSL_GUARDED_BY(mutex) = false;
};

void LogWriter::State::Run() {
  const auto something = [this]()
                             ABSL_SHARED_LOCKS_REQUIRED(mutex) { return !lines.empty() || ending; };
  mutex.Lock();
  for (;;) {
    mutex.Await(absl::Condition(&something));
    if (lines.empty()) break;
    const Waiting next = std::move(lines.front());
    lines.pop_front();
    writing = true;
    mutex.Unlock();
    next.target->Write(next.line);
    mutex.Lock();
    writing = false;
    num_bytes -= next.line.size();
    if (lines.empty()) stuck = false;
    if (num_dropped == 0) continue;
    std::string said = DroppedLine(std::exchange(num_dropped, 0));
    num_bytes += said.size();
    lines.push_back({std::move(said), target});
  }
  mutex.Unlock();
}

namespace {

// The log's thread is made before the signal has its handler.
void OpenSignalOfStacks() {
  sigset_t stacks;
  sigemptyset(&stacks);
  sigaddset(&stacks, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &stacks, nullptr);
}

}  // namespace

LogWriter::LogWriter(size_t max_waiting_bytes)
    : state_(std::make_shared<State>(max_waiting_bytes)) {
  const int error = StartDetached({"epd-log", ThreadSignals::kNone}, [state = state_] {
    OpenSignalOfStacks();
    state->Run();
  });
  if (error == 0) return;
  const absl::MutexLock lock(&state_->mutex);
  state_->has_thread = false;
  state_->target->Write(absl::StrCat("event=\"the log has no thread of its own\" why=\"",
                                     WhyNoThread("epd-log", error),
                                     "\" then=\"whoever logs waits for the log's reader\"\n"));
}

LogWriter::~LogWriter() {
  const absl::MutexLock lock(&state_->mutex);
  state_->ending = true;
}

absl::Status LogWriter::Use(const std::string& path) {
  const auto target = std::make_shared<Target>();
  if (!path.empty()) {
    target->path = path;
    target->fd = -1;
    if (!target->Open()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot open '", path, "': ", std::strerror(errno)));
    }
  }
  const absl::MutexLock lock(&state_->mutex);
  state_->target = target;
  return absl::OkStatus();
}

void LogWriter::Write(std::string line) {
  State& state = *state_;
  const absl::MutexLock lock(&state.mutex);
  if (!state.has_thread) return state.target->Write(line);
  if (state.num_bytes + line.size() > state.max_bytes) {
    ++state.num_dropped;
    return;
  }
  state.num_bytes += line.size();
  state.lines.push_back({std::move(line), state.target});
  const auto idle = [&state]() ABSL_SHARED_LOCKS_REQUIRED(state.mutex) { return state.Idle(); };
  if (!state.stuck) state.stuck = !state.mutex.AwaitWithTimeout(absl::Condition(&idle), kGrace);
}

void LogWriter::Flush(absl::Duration patience) {
  State& state = *state_;
  const auto idle = [&state]() ABSL_SHARED_LOCKS_REQUIRED(state.mutex) { return state.Idle(); };
  const absl::MutexLock lock(&state.mutex);
  state.mutex.AwaitWithTimeout(absl::Condition(&idle), patience);
}

std::string LogWriter::DroppedLine(uint64_t count) {
  return absl::StrCat("event=\"log lines dropped\" count=", count,
                      " why=\"the log's reader or disk did not take them\"\n");
}

}  // namespace epd
