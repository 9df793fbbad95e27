#include "daemon/worker/shell/worker_main.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/backend/unique_id_child.h"
#include "daemon/backend/unique_id_maker.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/wire.h"
#include "daemon/worker/shell/epd_socket.h"
#include "daemon/worker/shell/exec_loop.h"

namespace epd {
namespace {

constexpr int kExitUsage = 2;
constexpr char kLocalListen[] = "127.0.0.1:0";
// How long the worker may take to answer everybody once it was told to stop.
constexpr unsigned kStopSeconds = 5;
constexpr int kHelloLimitMs = 30'000;

volatile std::sig_atomic_t g_stop = 0;

pthread_t g_exec_thread;

void OnStopSignal(int) {
  // Other threads (gRPC's) take signals, too; only the exec thread's wait has to end.
  if (pthread_equal(pthread_self(), g_exec_thread) == 0) {
    pthread_kill(g_exec_thread, SIGTERM);
    return;
  }
  g_stop = 1;
  alarm(kStopSeconds);
}

// Rows of other nodes come and go in buffers of gRPC's. Given back to the kernel after each operation
// they would be faulted in again for the next one, which took a quarter of all time.
void KeepFreedMemory() {
  constexpr int kMaxThreshold = 32 << 20;  // glibc's own limit.
  constexpr int kKeep = 256 << 20;
  constexpr int kMaxArenas = 4;  // Each keeps what it has freed.
  mallopt(M_MMAP_THRESHOLD, kMaxThreshold);
  mallopt(M_TRIM_THRESHOLD, kKeep);
  mallopt(M_ARENA_MAX, kMaxArenas);
}

// The end of epd reaches the worker as the end of its socket, and as SIGTERM should it hang.
void WatchForTheEnd() {
  g_exec_thread = pthread_self();
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigaction(SIGTERM, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGPIPE, SIG_IGN);
  // A terminal's Ctrl-C, its end and whatever an operator asks of a daemon are for epd.
  for (const int of_epd : {SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) signal(of_epd, SIG_IGN);
}

int Usage() {
  std::fprintf(stderr,
               "usage: epd-worker --control-fd=N\n"
               "epd starts its workers itself; N is the socket to it.\n");
  return kExitUsage;
}

// ---- the first words between epd and its worker ----

// Waits for WorkerHello with its one descriptor.
//   UNAVAILABLE        epd is gone
//   DEADLINE_EXCEEDED  it says nothing for 30 s
//   INVALID_ARGUMENT   it says something else
absl::StatusOr<EpdMessage> ReceiveHello(EpdSocket& socket) {
  for (;;) {
    pollfd watched = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
    const int ready = poll(&watched, 1, kHelloLimitMs);
    if (ready < 0 && errno == EINTR) return absl::UnavailableError("asked to stop");
    if (ready <= 0) return absl::DeadlineExceededError("epd has not said hello in 30 s");
    absl::StatusOr<std::optional<EpdMessage>> message = socket.Receive();
    if (!message.ok()) return message.status();
    if (!message->has_value()) continue;
    if (!(*message)->body.has_hello() || (*message)->fds.size() != 1) {
      return absl::InvalidArgumentError("epd's first message is not a hello with one descriptor");
    }
    if ((*message)->body.hello().staging_bytes() == 0) {
      return absl::InvalidArgumentError("epd's hello names no staging_bytes");
    }
    return **std::move(message);
  }
}

// Where it takes streams of other workers.
struct WireAddresses {
  std::string wire;     // Of all; empty: nowhere.
  std::string local;    // Of its own node's; empty: at the same place.
  std::string problem;  // Why nowhere.
};

v1::FromWorker ReadyMessage(const ServedBackends& served, const NcclLibrary& nccl,
                            const WireAddresses& addresses) {
  const Backend& backend = *served.backends.front();
  v1::FromWorker message;
  v1::WorkerReady& ready = *message.mutable_ready();
  ready.set_backend(backend.name());
  ready.set_simd(backend.simd());
  ready.set_nccl_version(nccl.version());
  ready.set_nccl_path(nccl.path());
  ready.set_nccl_problem(nccl.problem());
  ready.set_pid(getpid());
  if (served.cuda.has_value()) *ready.mutable_cuda() = *served.cuda;
  ready.set_cuda_problem(served.no_cuda);
  ready.set_wire_address(addresses.wire);
  ready.set_local_address(addresses.local);
  ready.set_wire_problem(addresses.problem);
  return message;
}

// Members find each other where the id was made, so whoever makes one that is used stays. Without a GPU
// it only shows that the nodes could agree on one, and a network's set-up is kept out of this process.
UniqueIdMaker::Make MakerOfIds(const NcclLibrary& nccl, bool used) {
  if (used && !nccl.path().empty()) {
    const auto library = std::make_shared<NcclLibrary>(std::vector<std::string>{nccl.path()});
    return [library] { return library->MakeUniqueId(); };
  }
  if (nccl.path().empty()) {
    return [why = nccl.problem()]() -> absl::StatusOr<std::string> {
      return absl::UnavailableError("there is no libnccl: " + why);
    };
  }
  return
      [path = nccl.path()] { return MakeUniqueIdInChild(SelfPath(), path, UniqueIdMaker::kLimit); };
}

// A GPU's worker has neighbours on its node also where there are no other nodes: what they say does not
// leave the machine, and whoever says it must know the run's number.
std::unique_ptr<Wire> StartWire(const v1::WorkerHello& hello, WireAddresses& addresses) {
  const bool local = hello.wire_listen().empty();
  Wire::Options options{.node = hello.node(),
                        .self = Incarnation(hello.worker_incarnation()),
                        .tls = {hello.tls_ca(), hello.tls_cert(), hello.tls_key()}};
  if (local) options.tls = {};
  auto wire = std::make_unique<Wire>(std::move(options));
  absl::StatusOr<std::string> bound =
      wire->Listen(local ? kLocalListen : hello.wire_listen(), local ? "" : hello.wire_advertise());
  if (!bound.ok()) {
    addresses.problem = std::string(bound.status().message());
    return nullptr;
  }
  (local ? addresses.local : addresses.wire) = *std::move(bound);
  return wire;
}

absl::Status Serve(int control_fd, const MakeBackends& make_backends) {
  EpdSocket socket{UniqueFd(control_fd)};
  absl::StatusOr<EpdMessage> hello = ReceiveHello(socket);
  if (!hello.ok()) return hello.status();
  const v1::WorkerHello& body = hello->body.hello();
  absl::StatusOr<OutcomeRecords> records = OutcomeRecords::Open(hello->fds[0]);
  if (!records.ok()) return records.status();
  absl::StatusOr<ServedBackends> served = make_backends(body);
  if (!served.ok()) return served.status();
  const NcclLibrary nccl(NcclCandidates(body.nccl_library(), SelfPath()));
  const bool has_cuda = served->cuda.has_value();
  std::unique_ptr<Wire> wire;
  WireAddresses addresses;
  if (!body.wire_listen().empty() || has_cuda) {
    KeepFreedMemory();
    GiveEachLoopItsThreads();
    wire = StartWire(body, addresses);
  }
  if (absl::Status sent = socket.Send(ReadyMessage(*served, nccl, addresses)); !sent.ok()) {
    return sent;
  }
  ExecLoop loop(socket, body,
                {.records = *std::move(records),
                 .backends = std::move(served->backends),
                 .no_cuda = std::move(served->no_cuda),
                 .make_unique_id = MakerOfIds(nccl, has_cuda),
                 .wire = std::move(wire)},
                g_stop);
  return loop.Run();
}

}  // namespace

std::string SelfPath() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length <= 0 ? std::string() : std::string(path, static_cast<size_t>(length));
}

int WorkerMain(absl::string_view argument, const MakeBackends& make_backends) {
  int control_fd = -1;
  if (!absl::ConsumePrefix(&argument, "--control-fd=") ||
      !absl::SimpleAtoi(argument, &control_fd) || control_fd < 0) {
    return Usage();
  }
  WatchForTheEnd();
  const absl::Status status = Serve(control_fd, make_backends);
  if (absl::IsUnavailable(status)) return EXIT_SUCCESS;
  std::fprintf(stderr, "epd-worker: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}

}  // namespace epd
