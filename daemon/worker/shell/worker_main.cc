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
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/backend/unique_id_child.h"
#include "daemon/backend/unique_id_maker.h"
#include "daemon/tls/address.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/wire.h"
#include "daemon/worker/shell/epd_socket.h"
#include "daemon/worker/shell/exec_loop.h"
#include "proto/epd/v1/text.h"
#include "proto/machine/thread.h"
#include "proto/stacks/stack_writer.h"

namespace epd {
namespace {

constexpr int kExitUsage = 2;
constexpr char kLocalListen[] = "127.0.0.1:0";
// How long the worker may take to answer everybody once it was told to stop.
constexpr unsigned kStopSeconds = 5;
constexpr int kHelloLimitMs = 30'000;
constexpr size_t kReadyTextBytes = 16 << 10;  // Of each text: paths, and why there is none.
constexpr size_t kHelloFdsWithTls = 4;
// Also where the file has been replaced since.
constexpr char kOwnProgram[] = "/proc/self/exe";
constexpr absl::Duration kLookup = absl::Seconds(5);

volatile std::sig_atomic_t g_stop = 0;

pthread_t g_exec_thread;
pid_t g_epd = 0;

// SIGTERM, or SIGCONT, which comes with the end of each of epd's threads and whenever somebody lets the worker go on.
void OnStopSignal(int signal) {
  if (signal == SIGCONT && getppid() == g_epd) return;
  // Other threads (gRPC's) take signals, too; only the exec thread's wait has to end.
  if (pthread_equal(pthread_self(), g_exec_thread) == 0) {
    pthread_kill(g_exec_thread, SIGTERM);
    return;
  }
  g_stop = 1;
  alarm(kStopSeconds);
}

// It has not stopped in time: what its threads do stays for `epctl support-archive`, and it ends as the signal says.
void OnTimeIsUp(int /*signal*/) {
  stacks::WriteBeforeTheEnd();
  signal(SIGALRM, SIG_DFL);
  kill(getpid(), SIGALRM);
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

// The end of epd reaches the worker as the end of its socket, and should it hang or be stopped, as SIGCONT: no other
// signal that can be handled makes a stopped process go on, and one that stayed would keep its arenas for ever.
void WatchForTheEnd() {
  g_exec_thread = pthread_self();
  g_epd = getppid();
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  for (const int one : {SIGTERM, SIGCONT}) sigaction(one, &action, nullptr);
  action.sa_handler = OnTimeIsUp;
  sigaction(SIGALRM, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGCONT);
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

// Waits for WorkerHello with its descriptors.
//   UNAVAILABLE        epd is gone
//   DEADLINE_EXCEEDED  it says nothing for 30 s
//   INVALID_ARGUMENT   it says something else
absl::StatusOr<EpdMessage> ReceiveHello(EpdSocket& socket) {
  for (;;) {
    pollfd watched = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
    const int ready = poll(&watched, 1, kHelloLimitMs);
    if (ready < 0 && errno == EINTR && g_stop == 0) continue;
    if (ready < 0 && errno == EINTR) return absl::UnavailableError("asked to stop");
    if (ready <= 0) return absl::DeadlineExceededError("epd has not said hello in 30 s");
    absl::StatusOr<std::optional<EpdMessage>> message = socket.Receive();
    if (!message.ok()) return message.status();
    if (!message->has_value()) continue;
    const size_t num_fds = (*message)->fds.size();
    if (!(*message)->body.has_hello() || (num_fds != 1 && num_fds != kHelloFdsWithTls)) {
      return absl::InvalidArgumentError("epd's first message is not a hello with its descriptors");
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
  // Libraries, drivers and the machine write most of it.
  const auto clean = [](const std::string& text) { return text::Clean(text, kReadyTextBytes); };
  ready.set_backend(backend.name());
  ready.set_simd(backend.simd());
  ready.set_nccl_version(clean(nccl.version()));
  ready.set_nccl_path(clean(nccl.path()));
  ready.set_nccl_problem(clean(nccl.problem()));
  ready.set_pid(getpid());
  if (served.cuda.has_value()) {
    *ready.mutable_cuda() = *served.cuda;
    ready.mutable_cuda()->set_name(clean(served.cuda->name()));
  }
  ready.set_cuda_problem(clean(served.no_cuda));
  ready.set_wire_address(addresses.wire);
  ready.set_local_address(addresses.local);
  ready.set_wire_problem(clean(addresses.problem));
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

// Where `others` are reached from, as an address to listen at. The resolver may be silent for longer than epd
// waits for a worker. "" and `*problem`: nowhere.
std::string ListenTowards(const std::string& others, bool anywhere, std::string* problem) {
  struct Lookup {
    absl::Notification done;
    std::string source;
  };
  const auto lookup = std::make_shared<Lookup>();
  const auto look_up = [lookup, others] {
    lookup->source = SourceTowards(others);
    lookup->done.Notify();
  };
  if (const int error = StartDetached({"epd-lookup"}, look_up); error != 0) {
    *problem =
        absl::StrCat("the address that '", others,
                     "' is reached from cannot be looked up: ", WhyNoThread("epd-lookup", error),
                     "; then restart epd, or set wire_listen");
    return "";
  }
  if (!lookup->done.WaitForNotificationWithTimeout(kLookup)) {
    *problem =
        absl::StrCat("the resolver did not answer for '", others, "' in ",
                     absl::FormatDuration(kLookup), "; set wire_listen, or mend it and restart");
    return "";
  }
  const std::string& source = lookup->source;
  if (source.empty()) {
    *problem = absl::StrCat("no way to '", others, "' was found; set wire_listen");
    return "";
  }
  if (!anywhere && !IsLoopback(HostOf(absl::StrCat(source, ":0")))) {
    *problem = absl::StrCat(
        "'", source, "', from where '", others,
        "' is reached, is no loopback address, and without TLS the rows of other nodes are "
        "taken only there; set tls_ca, tls_cert and tls_key, or, where the whole network is "
        "trusted, insecure=yes");
    return "";
  }
  return absl::StrCat(source, ":0");
}

// A GPU's worker has neighbours on its node also where there are no other nodes: what they say does not
// leave the machine.
std::unique_ptr<Wire> StartWire(const v1::WorkerHello& hello, const TlsFiles& tls,
                                WireAddresses& addresses) {
  const bool local = hello.wire_listen().empty();
  Wire::Options options{.node = hello.node(),
                        .self = Incarnation(hello.worker_incarnation()),
                        .tls = tls,
                        .secret = hello.wire_secret(),
                        .passes_ends = true};
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
  v1::WorkerHello& body = *hello->body.mutable_hello();
  absl::StatusOr<OutcomeRecords> records = OutcomeRecords::Open(hello->fds[0]);
  if (!records.ok()) return records.status();
  absl::StatusOr<ServedBackends> served = make_backends(body);
  if (!served.ok()) return served.status();
  const NcclLibrary nccl(NcclCandidates(body.nccl_library(), SelfPath()));
  const bool has_cuda = served->cuda.has_value();
  std::unique_ptr<Wire> wire;
  WireAddresses addresses;
  absl::string_view others = body.wire_listen();
  const bool anywhere = absl::ConsumePrefix(&others, kTowards);
  if (anywhere || absl::ConsumePrefix(&others, kTowardsLoopback))
    body.set_wire_listen(ListenTowards(std::string(others), anywhere, &addresses.problem));
  if (!body.wire_listen().empty() || has_cuda) {
    KeepFreedMemory();
    GiveEachLoopItsThreads();
    KeepLibrariesQuiet();
    const std::vector<UniqueFd>& fds = hello->fds;
    const TlsFiles tls = fds.size() == kHelloFdsWithTls
                             ? TlsFiles::Of(fds[1].get(), fds[2].get(), fds[3].get())
                             : TlsFiles();
    wire = StartWire(body, tls, addresses);
  }
  if (absl::Status sent = socket.Send(ReadyMessage(*served, nccl, addresses)); !sent.ok()) {
    return sent;
  }
  ExecLoop loop(socket, body,
                {.records = *std::move(records),
                 .backends = std::move(served->backends),
                 .no_cuda = std::move(served->no_cuda),
                 .make_unique_id = MakerOfIds(nccl, has_cuda),
                 .page_program = kOwnProgram,
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
  if (const std::string bad = stacks::Start(stacks::Frames::kUnwound); !bad.empty())
    std::fprintf(stderr, "epd-worker: it cannot write its stacks on SIGUSR2: %s\n", bad.c_str());
  const absl::Status status = Serve(control_fd, make_backends);
  stacks::Stop();
  if (absl::IsUnavailable(status)) return EXIT_SUCCESS;
  std::fprintf(stderr, "epd-worker: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}

}  // namespace epd
