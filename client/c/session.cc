#include "client/c/session.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>

#include "client/c/attach_messages.h"
#include "client/c/epd_client.h"
#include "proto/epd/v1/features.h"
#include "proto/epd/v1/limits.h"
#include "proto/failpoint/failpoint.h"

namespace epd::client {
namespace {

// Waiting for ever, in a form that no arithmetic overflows.
Clock::time_point Never() { return Clock::now() + std::chrono::hours(24 * 365); }

// A thread that reads does so for the others, too: one that was cancelled (pthread_cancel) in the middle would leave them
// waiting for ever.
class Uncancelled {
 public:
  Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = 0;
};

// Needs no memory: so short a text lies in the string itself.
Status OutOfMemory() { return {Code::kResourceExhausted, "out of memory"}; }

Status ForkedChild() {
  return MakeStatus(
      Code::kFailedPrecondition,
      "this object belongs to the parent process; a forked child calls epd_connect itself");
}

// W3C Trace Context in environment variables: the span that this process was started in. What cannot be one is left out: protobuf
// refuses strings that are no UTF-8.
std::string TraceparentOfEnvironment() {
  constexpr size_t kMaxBytes = 200;
  const char* value = std::getenv("TRACEPARENT");
  const bool may_be_one = value != nullptr && std::strlen(value) <= kMaxBytes &&
                          std::strspn(value, "0123456789abcdef-") == std::strlen(value);
  return may_be_one ? value : "";
}

// Seconds of Unix time; 0 where /proc does not say.
int64_t StartOfProcess() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The second field is the program's name in brackets, which may hold anything; the 22nd counts ticks since the machine's
  // start.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  int64_t ticks = 0;
  timespec up = {};
  const int64_t per_second = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || per_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &up) != 0) return 0;
  return time(nullptr) - (up.tv_sec - ticks / per_second);
}

}  // namespace

Session::Session(std::string path, AttachSocket socket)
    : path_(std::move(path)), pid_(getpid()), socket_(std::move(socket)) {}

Status Session::Attach(const std::string& path, const std::string& client_name,
                       Clock::time_point deadline, std::shared_ptr<Session>* out) {
  AttachSocket socket;
  if (Status s = AttachSocket::Connect(path, deadline, &socket); !s.ok()) return s;
  std::shared_ptr<Session> session(new Session(path, std::move(socket)));
  client::Attach attach = MakeAttach(client_name);
  attach.client_version = EPD_CLIENT_VERSION;
  attach.traceparent = TraceparentOfEnvironment();
  attach.started = StartOfProcess();
  attach.features = features::kTakesSlotsOfFurtherWorkers | features::kTakesManySlots |
                    features::kTakesLandingArenas;
  if (Status unsent = session->socket_.Send(EncodeClientMessage(attach)); !unsent.ok()) {
    // Who is refused for their uid is told so, and the daemon is gone, perhaps before the first word.
    const Status said = session->TakeAttached(deadline);
    return said.ok() || said.code == Code::kUnavailable ? unsent : said;
  }
  EPD_FAILPOINT("client.attach.said");
  if (Status s = session->TakeAttached(deadline); !s.ok()) return s;
  *out = std::move(session);
  return {};
}

Status Session::TakeAttached(Clock::time_point deadline) {
  AttachSocket::Datagram datagram;
  if (Status s = socket_.Receive(deadline, &datagram); !s.ok()) {
    const Code code = s.code == Code::kDataLoss ? s.code : Code::kUnavailable;
    return MakeStatus(code, "the daemon at %s did not answer: %s", path_.c_str(),
                      s.message.c_str());
  }
  ServerMessage message;
  if (Status s = DecodeServerMessage(datagram.bytes, &message); !s.ok()) return s;
  if (const auto* goodbye = std::get_if<Goodbye>(&message)) {
    return goodbye->status.ok()
               ? MakeStatus(Code::kUnavailable, "the daemon at %s ends", path_.c_str())
               : goodbye->status;
  }
  if (datagram.lacks_fds) return NoDescriptors();
  const auto* attached = std::get_if<Attached>(&message);
  if (attached == nullptr || datagram.fds.size() != 2) {
    return MakeStatus(Code::kDataLoss,
                      "the daemon at %s answered with message %zu and %zu descriptors, expected "
                      "Attached and 2; is something else listening there?",
                      path_.c_str(), message.index(), datagram.fds.size());
  }
  EPD_FAILPOINT("client.attach.answered");
  attached_ = *attached;
  if (attached_.version < kMinAttachVersion || attached_.version > limits::kProtocolVersion) {
    return MakeStatus(
        Code::kUnimplemented,
        "the daemon chose version %u of the attach protocol; this library speaks %u to %u",
        attached_.version, kMinAttachVersion, limits::kProtocolVersion);
  }
  return SessionSlots::Map(datagram.fds, 0, attached_, &cpu_slots_);
}

Session::~Session() { Disconnect(); }

void Session::Disconnect() {
  std::map<uint64_t, std::shared_ptr<Group>> groups;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    groups.swap(groups_);
    changed_.NotifyAll();
  }
  for (const auto& [id, group] : groups) {
    try {
      group->OnEnded(MakeStatus(Code::kFailedPrecondition, "this client was disconnected"));
    } catch (const std::bad_alloc&) {
      group->OnEnded({Code::kFailedPrecondition, "disconnected"});  // Short: it needs no memory.
    }
  }
  socket_.Shutdown();
  if (watchdog_.joinable()) watchdog_.join();
}

Status Session::EndInterrupted() {
  socket_.Shutdown();
  // Now, not when somebody reads the end of the socket: the next call finds the session ended, and joins again.
  Lose(MakeStatus(Code::kUnavailable, "a wait was interrupted (SIGINT)"));
  return MakeStatus(
      Code::kCancelled,
      "interrupted (SIGINT) while it waited for other ranks, which are told that this "
      "one has left; to go on, connect and join again");
}

bool Session::InForkedChild() {
  if (getpid() == pid_) return false;
  if (!abandoned_.exchange(true)) {
    socket_.Close();
    // Those of other workers stay open: only who holds the mutex sees them.
    cpu_slots_->CloseEvent();
  }
  return true;
}

Status Session::lost() {
  MutexLock lock(mutex_);
  return lost_;
}

Status Session::Check() {
  if (InForkedChild()) return ForkedChild();
  MutexLock lock(mutex_);
  // Without a watchdog this is where the end of the session is seen.
  if (!reading_) {
    reading_ = true;
    lock.Unlock();
    while (ReadOne(Clock::time_point::min())) {
    }
    lock.Lock();
    reading_ = false;
    changed_.NotifyAll();
  }
  return lost_;
}

Status Session::BeforeCall() {
  if (InForkedChild()) return ForkedChild();
  return watched_.load(std::memory_order_acquire) ? Status() : StartWatchdog();
}

Status Session::BeforeCallOf(const Group& group) {
  Status status = BeforeCall();
  if (status.ok() && group.RefusesCalls()) Settle();
  return status;
}

void Session::Await(Clock::time_point deadline, const std::function<bool()>& done) {
  while (!done() && lost_.ok() && Clock::now() < deadline) {
    if (reading_) {
      changed_.WaitUntil(mutex_, deadline);
      continue;
    }
    reading_ = true;
    mutex_.Unlock();
    ReadOne(deadline);
    mutex_.Lock();
    reading_ = false;
    changed_.NotifyAll();
    pthread_testcancel();  // Where it has read, another can go on.
  }
}

bool Session::ReadOne(Clock::time_point deadline) {
  const Uncancelled whole;
  if (!socket_.WaitReadable(deadline)) return false;
  handling_ = true;
  bool handled = false;
  try {
    handled = HandleOne();
  } catch (const std::bad_alloc&) {
    LoseForMemory();
  }
  handling_ = false;
  return handled;
}

bool Session::HandleOne() {
  AttachSocket::Datagram datagram;
  Status status = socket_.Receive(Clock::time_point::min(), &datagram);
  if (status.code == Code::kDeadlineExceeded) return false;
  ServerMessage message;
  if (status.ok()) status = DecodeServerMessage(datagram.bytes, &message);
  if (!status.ok()) {
    Lose(std::move(status));
    return false;
  }
  if (datagram.lacks_fds) {
    auto* const joined = std::get_if<Joined>(&message);
    if (joined == nullptr) {
      Lose(NoDescriptors());
      return false;
    }
    TakeJoined(*joined, datagram.fds, NoDescriptors());
    return true;
  }
  std::visit([&](auto& body) { Handle(body, datagram.fds); }, message);
  return true;
}

void Session::Settle() {
  constexpr std::chrono::milliseconds kLongest{1000};
  const Clock::time_point until = Clock::now() + kLongest;
  MutexLock lock(mutex_);
  // In this order: a datagram that is no longer to be read is being handled, or was.
  while (lost_.ok() && Clock::now() < until &&
         (socket_.WaitReadable(Clock::time_point::min()) || handling_)) {
    changed_.WaitUntil(mutex_, Clock::now() + std::chrono::milliseconds(1));
  }
}

void Session::Lose(Status cause) {
  std::map<uint64_t, std::shared_ptr<Group>> groups;
  {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return;
    if (!goodbye_.ok()) cause = goodbye_;
    lost_ = WithCode(MakeStatus(
        cause.code,
        "the session with the daemon on node %s (pid %u, socket %s) has ended: %s; connect "
        "and join again [EPD-1305]",
        attached_.node.c_str(), attached_.daemon_pid, path_.c_str(), cause.message.c_str()));
    lost_.resumable = cause.resumable;
    cause = lost_;
    groups = groups_;
    for (auto& [id, request] : pending_) {
      request.done = true;
      request.status = cause;
      if (request.group != nullptr) groups.emplace(UINT64_MAX - id, request.group);
    }
    changed_.NotifyAll();
  }
  for (const auto& [id, group] : groups) group->OnEnded(cause);
}

void Session::LoseForMemory() noexcept {
  std::map<uint64_t, std::shared_ptr<Group>> groups;
  {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return;
    lost_ = OutOfMemory();
    groups.swap(groups_);
    for (auto& [id, request] : pending_) {
      request.done = true;
      request.status = OutOfMemory();
      if (request.group != nullptr) request.group->OnEnded(OutOfMemory());
    }
    changed_.NotifyAll();
  }
  socket_.Shutdown();  // epd and the other ranks see the end at once.
  for (const auto& [id, group] : groups) group->OnEnded(OutOfMemory());
}

Status Session::StartWatchdog() {
  MutexLock lock(mutex_);
  if (watched_.load(std::memory_order_relaxed) || closing_) return {};
  constexpr const char* kName = "epd-watchdog";
  // Signals are for the program's own threads.
  if (const int error = StartThread(
          {kName, ThreadSignals::kNone}, [this] { Watch(); }, &watchdog_);
      error != 0)
    return {Code::kResourceExhausted, WhyNoThread(kName, error)};
  watched_.store(true, std::memory_order_release);
  return {};
}

void Session::Watch() {
  MutexLock lock(mutex_);
  while (lost_.ok()) Await(Never(), [] { return false; });
  const auto closing = [this] {
    mutex_.AssertHeld();
    return closing_;
  };
  changed_.WaitUntil(mutex_, Clock::now() + kPoisonDelay, closing);
  EPD_FAILPOINT("client.watchdog.poison");
  cpu_slots_->pool().PoisonAll();
  for (const auto& [worker, slots] : further_slots_) slots->pool().PoisonAll();
}

}  // namespace epd::client
