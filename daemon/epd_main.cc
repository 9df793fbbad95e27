#include "daemon/epd_main.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/metrics/metrics_server.h"
#include "daemon/node/attach/instance_lock.h"
#include "daemon/node/attach/socket_file.h"
#include "daemon/node/attach/socket_watch.h"
#include "daemon/node/handover/handover_check.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/handover/handover_memory.h"
#include "daemon/node/loop/signals.h"
#include "daemon/node/node.h"
#include "daemon/node/process.h"
#include "daemon/node/settings/reload.h"
#include "daemon/node/settings/settings.h"
#include "daemon/observe/log.h"
#include "daemon/otlp/trace_exporter.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/handover/node_state_codec.h"
#include "daemon/rpc/node_api/local_trace.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/server.h"
#include "daemon/shared_memory/page_process.h"
#include "daemon/version.h"
#include "proto/machine/cgroup_limits.h"
#include "proto/machine/thread.h"
#include "proto/stacks/stack_writer.h"

namespace epd {
namespace {

// A predecessor on its way out may take this long to let go of the socket.
constexpr absl::Duration kPredecessor = absl::Seconds(10);
// ... and the log's reader this long to take the last lines.
constexpr absl::Duration kLastLines = absl::Seconds(1);
// ... and while clients and peers wait for the next program.
constexpr absl::Duration kLastWordsOfReplaced = absl::Milliseconds(100);

// Threads that some settings ask for, beside those of each epd.
int ThreadsOf(const Settings& settings) {
  int count = settings.listen.empty() ? 0 : 8;  // Links and streams, the worker's too.
  if (!settings.metrics_listen.empty()) count += 5;
  if (!settings.otlp_endpoint.empty()) count += 2;
  if (!settings.rendezvous.empty()) count += 3;
  return count;
}

// Whether this process may start as many threads as epd, gRPC and the worker need, by a try: gRPC hangs or aborts where it gets
// none.
//   RESOURCE_EXHAUSTED  fewer: how many, and which limits there are
absl::Status CheckThreads(const Settings& settings) {
  // epd has 12 on two cores; a worker has 2, and a process for each user.
  constexpr int kEpdAndWorker = 18;
  constexpr int kMostOfCores = 14;  // Of gRPC, which has some for each core.
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int needed = kEpdAndWorker + std::clamp(cores - 2, 0, kMostOfCores) + ThreadsOf(settings);
  const int count = CountThreads(needed);
  if (count >= needed) return absl::OkStatus();
  const std::string limits = ThreadLimits();
  return absl::ResourceExhaustedError(absl::StrCat(
      "this process may start ", count, " more threads, and epd with its worker needs ", needed,
      "; raise the limit of threads and processes: pids.max of the control group (TasksMax= of a "
      "unit, --pids-limit of a container), ulimit -u or ulimit -v",
      limits.empty() ? "" : absl::StrCat(" (now: ", limits, ")")));
}

// With the lowest limit of memory of its control group and those above it.
MachineFacts ReadFacts() {
  MachineFacts facts = ReadMachineFacts();
  const auto limit = Lowest(MemoryLimits(&ReadMachineFile));
  if (limit.has_value()) facts.memory_bytes = std::min(facts.memory_bytes, limit->limit);
  return facts;
}

absl::Status CheckPaths(const Settings& settings) {
  absl::Status checked = CheckSocketPath(settings.socket, "socket");
  checked.Update(CheckSocketPath(settings.grpc_socket, "grpc_socket"));
  if (!checked.ok()) return checked;
  if (settings.socket == settings.grpc_socket) {
    return absl::InvalidArgumentError(
        absl::StrCat("grpc_socket: got the path of `socket`, '", settings.socket, "'"));
  }
  checked = PrepareFolderOf(settings.socket);
  checked.Update(PrepareFolderOf(settings.grpc_socket));
  return checked;
}

// What SIGHUP asks a node's daemon for. A private one ignores it: it outlives the terminal that it was
// started from.
void ReadAgain(const std::vector<std::string>& args, const MachineFacts& facts,
               ParsedSettings& current) {
  if (current.settings.idle_exit > absl::ZeroDuration()) return;
  const absl::StatusOr<ParsedSettings> next = ParseSettings(args, facts);
  const Settings& log = next.ok() ? next->settings : current.settings;
  absl::Status read = OpenLog(log.log_level, log.log_file);
  read.Update(next.status());
  if (!read.ok()) {
    return Log(LogLevel::kError, "settings are bad, the old ones stay", {{"why", read.message()}});
  }
  const Reload reload = TakeOver(*next, facts, current);
  Log(LogLevel::kInfo, "settings read again", {{"taken", absl::StrJoin(reload.taken, ",")}});
  if (reload.need_restart.empty()) return;
  Log(LogLevel::kWarn, "settings need a restart",
      {{"changed", absl::StrJoin(reload.need_restart, ",")}});
}

// Where this program lies, also once another file has taken its place there.
std::string OwnProgram() {
  char path[PATH_MAX];
  const ssize_t got = readlink("/proc/self/exe", path, sizeof path);
  return std::string(path, got > 0 ? static_cast<size_t>(got) : 0);
}

// What this program was started with, and what it gets from the one before it, if it replaces one.
struct Start {
  const std::vector<std::string>& args;
  const MachineFacts& facts;
  const HandoverVersion& version;
  std::string program;
  std::optional<v1::Handover> before;

  const v1::Handover& Before() const {
    return before.has_value() ? *before : v1::Handover::default_instance();
  }
};

// Whether this program can go on where the one before it was.
absl::Status CheckBefore(const Start& start, const Settings& settings) {
  if (!start.before.has_value()) return absl::OkStatus();
  absl::Status fits = CheckVersion(start.before->header(), start.version);
  if (fits.ok()) fits = CheckPlace(start.before->header(), PlaceOf(settings));
  return fits;
}

absl::StatusOr<InstanceLock> TakeLock(const Start& start, const Settings& settings,
                                      IncomingFds& fds) {
  if (!start.before.has_value()) return InstanceLock::Take(settings.socket, kPredecessor);
  return InstanceLock::Adopt(settings.socket, fds.Take(start.before->lock_fd()));
}

absl::Status StartCertificates(const Start& start, IncomingFds& fds,
                               CertificateFiles& certificates) {
  if (start.before.has_value()) {
    std::vector<std::shared_ptr<UniqueFd>> copies;
    for (const int fd : start.before->certificate_fds()) copies.push_back(fds.Share(fd));
    certificates.Adopt(copies);
  }
  return certificates.Start();
}

absl::Status EnterWorkers(const Start& start, IncomingFds& fds, Node& node) {
  if (start.before.has_value()) {
    absl::StatusOr<NodeState> control = FromProto(start.before->control());
    if (!control.ok()) return control.status();
    absl::Status restored = node.Restore(*start.before, *std::move(control), fds);
    if (!restored.ok()) return restored;
  }
  return node.AddWorkers();
}

absl::StatusOr<UniqueFd> TakeListener(const Start& start, const Settings& settings,
                                      IncomingFds& fds) {
  if (!start.before.has_value()) return ListenAt(settings.socket);
  UniqueFd listener = fds.Take(start.before->clients().listener_fd());
  if (!fds.status().ok()) return fds.status();
  return listener;
}

void TakeRequestsForStacks() {
  if (const std::string bad = stacks::Start(stacks::Frames::kUnwound); !bad.empty())
    Log(LogLevel::kWarn, "epd cannot write its stacks on SIGUSR2", {{"why", bad}});
}

// Leaves the process to another program: returns only if that fails, and then nothing has changed.
absl::Status HandOver(const Start& start, v1::Handover handover, const InstanceLock& lock,
                      const Replacement::Request& request, Node& node) {
  if (absl::Status can = node.CanSave(); !can.ok()) return can;
  OutgoingFds fds;
  handover.set_began(PutTime(MonotonicNow()));
  handover.set_by(request.by);
  handover.set_lock_fd(fds.Put(lock.fd()));
  node.Save(handover, fds);
  *handover.mutable_control() = ToProto(node.control().State());
  const absl::StatusOr<UniqueFd> state = WriteHandover(handover);
  if (!state.ok()) return state.status();
  Log(LogLevel::kInfo, "replacing",
      {{"program", request.program},
       {"by", request.by},
       {"sessions", handover.clients().sessions_size()},
       {"bytes", handover.ByteSizeLong()}});
  FlushLog(kLastWordsOfReplaced);
  // The page is of a process, and the next program makes its own; until then the signal is ignored.
  stacks::Stop();
  fds.SetInherited(true);
  absl::Status failed = RunReplacement(request.program, start.args, *state);
  fds.SetInherited(false);
  TakeRequestsForStacks();
  return failed;
}

// From now on HandOver is what `epctl replace` asks for; all outlive the node's loop.
void OfferReplacement(const Start& start, const InstanceLock& lock, const RpcServer& rpc,
                      const MetricsServer& metrics, Node& node) {
  v1::Handover next;
  *next.mutable_header() = MakeHeader(start.version, kVersion, PlaceOf(node.settings()));
  next.set_listen(rpc.listen_address());
  next.set_metrics_listen(metrics.address());
  node.replacement().Set({start.program, start.args, next.header(),
                          [&start, &lock, &node, next](const Replacement::Request& request) {
                            return HandOver(start, next, lock, request, node);
                          }});
}

// Both are this epd's only as long as it has its lock.
std::vector<SocketWatch::Socket> SocketsOf(const Settings& settings, InstanceLock& lock,
                                           SocketFile& file, RpcServer& rpc, Node& node) {
  const auto renew_attach = [&settings, &lock, &file, &node]() -> absl::Status {
    absl::Status can = PrepareFolderOf(settings.socket);
    if (can.ok()) can = lock.Renew();
    if (!can.ok()) return can;
    absl::StatusOr<UniqueFd> listener = ListenAt(settings.socket);
    if (!listener.ok()) return listener.status();
    file = SocketFile(settings.socket);
    return node.Listen(*std::move(listener));
  };
  return {{settings.socket, [&file] { return file.IsThere(); }, renew_attach},
          {settings.grpc_socket, [&rpc] { return rpc.has_socket_file(); },
           [&rpc] { return rpc.ListenAgain(); }}};
}

void LogStart(const Start& start, const Settings& settings, const RpcServer& rpc,
              const MetricsServer& metrics) {
  Log(LogLevel::kInfo, "serving",
      {{"version", kVersion},
       {"pid", getpid()},
       {"node", settings.node},
       {"socket", settings.socket},
       {"grpc_socket", settings.grpc_socket},
       {"listen", rpc.listen_address()},
       {"metrics", metrics.address()}});
  if (!start.before.has_value()) return;
  const v1::Handover& before = *start.before;
  Log(LogLevel::kInfo, "replaced",
      {{"previous_version", before.header().epd_version()},
       {"version", kVersion},
       {"state", absl::StrCat(before.header().major(), ".", before.header().minor())},
       {"num_replacements", before.num_replacements()},
       {"by", before.by()},
       {"took", absl::FormatDuration(MonotonicNow() - GetTime(before.began()))}});
}

// The start and stop order. Whatever is started later is stopped earlier:
//   lock, certificates, segments, gRPC, metrics, traces, attach socket, READY, [worker and control loop], STOPPING,
//   sockets, sessions, worker, traces, metrics, gRPC
absl::Status Serve(const Start& start, ParsedSettings& parsed) {
  const Settings& settings = parsed.settings;
  if (absl::Status bad = CheckPidfds(); !bad.ok()) return bad;
  if (absl::Status bad = CheckPaths(settings); !bad.ok()) return bad;
  if (absl::Status bad = CheckBefore(start, settings); !bad.ok()) return bad;
  IncomingFds inherited;
  absl::StatusOr<InstanceLock> lock = TakeLock(start, settings, inherited);
  if (!lock.ok()) return lock.status();

  const std::unique_ptr<CertificateFiles> certificates = MakeCertificateFiles(settings);
  if (absl::Status bad = StartCertificates(start, inherited, *certificates); !bad.ok()) return bad;
  const absl::StatusOr<std::string> secret = ReadSecretOfLinks(settings);
  if (!secret.ok()) return secret.status();
  Node node(parsed, {kVersion, HostName(), *certificates, *secret,
                     start.before.has_value() ? &*start.before : nullptr});
  if (absl::Status bad = EnterWorkers(start, inherited, node); !bad.ok()) return bad;
  SignalWatch signals;
  const auto on_signal = [&](int signal) {
    if (signal == SIGHUP) return ReadAgain(start.args, start.facts, parsed);
    node.BeginShutdown(settings.drain_deadline,
                       absl::UnavailableError("this epd is stopping; connect again later"));
  };
  if (absl::Status bad = signals.Start(node.loop(), on_signal); !bad.ok()) return bad;

  SupervisorWatchdog watchdog;
  if (absl::Status bad = watchdog.Start(node.loop()); !bad.ok()) return bad;

  RpcServer rpc(node);
  if (absl::Status bad = rpc.Start(start.Before().listen()); !bad.ok()) return bad;
  MetricsServer metrics(
      [&node](FiguresCache::Done done) { return AskFigures(node, std::move(done)); });
  if (absl::Status bad = metrics.Start(settings, start.Before().metrics_listen()); !bad.ok())
    return bad;
  TraceExporter traces(std::bind_front(&AskTraces, std::ref(node)), kVersion);
  if (absl::Status bad = traces.Start(settings); !bad.ok()) return bad;
  absl::StatusOr<UniqueFd> listener = TakeListener(start, settings, inherited);
  if (!listener.ok()) return listener.status();
  SocketFile socket_file =
      start.before.has_value() ? SocketFile::Adopt(settings.socket) : SocketFile(settings.socket);
  if (absl::Status bad = node.Listen(*std::move(listener)); !bad.ok()) return bad;
  inherited.Finish();
  SocketWatch sockets(SocketsOf(settings, *lock, socket_file, rpc, node),
                      [&node](std::string problem) { node.SetSocketProblem(std::move(problem)); });
  if (absl::Status bad = sockets.Start(node.loop()); !bad.ok()) return bad;

  OfferReplacement(start, *lock, rpc, metrics, node);
  LogStart(start, settings, rpc, metrics);
  NotifySupervisor("READY=1");
  node.Run([&] {
    NotifySupervisor("STOPPING=1");
    sockets.Stop();
    socket_file.Remove();
    rpc.SetServing(false);
  });
  traces.Stop();
  metrics.Stop();
  rpc.Stop();
  Log(LogLevel::kInfo, "ended", {{"pid", getpid()}});
  return absl::OkStatus();
}

// What --help and the like are asked for. `open`: standard output was, when the program began.
int PrintAll(const std::string& text, bool open) {
  errno = open ? 0 : EBADF;
  if (open) {
    std::cout << text;
    if (std::cout.flush()) return 0;
  }
  std::cerr << "epd: cannot write to standard output: "
            << (errno == 0 ? "it takes no more" : std::strerror(errno)) << "\n";
  return 1;
}

}  // namespace

int RunEpd(const std::vector<std::string>& args, const HandoverVersion& version) {
  const bool has_output = fcntl(STDOUT_FILENO, F_GETFD) >= 0;
  PrepareProcess();
  if (args.size() == 1 && args[0] == kPageProcessFlag) return PageProcessMain(/*socket=*/3);
  const MachineFacts facts = ReadFacts();
  if (!args.empty() && args.back() == kHandoverCheckFlag)
    return AnswerHandoverCheck({args.begin(), args.end() - 1}, facts, version, kVersion);
  absl::StatusOr<std::optional<v1::Handover>> before = TakeHandover();
  if (!before.ok()) {
    std::cerr << "epd: " << before.status().message() << "\n";
    return 2;
  }
  absl::StatusOr<ParsedSettings> parsed = ParseSettings(args, facts);
  if (!parsed.ok()) {
    std::cerr << "epd: " << parsed.status().message() << "\n";
    return 2;
  }
  if (parsed->help || parsed->version || parsed->print_config) {
    return PrintAll(absl::StrCat(parsed->help ? HelpText(facts) : "",
                                 parsed->version ? absl::StrCat("epd ", kVersion, "\n") : "",
                                 parsed->print_config ? PrintConfig(*parsed) : ""),
                    has_output);
  }

  // Before the log's thread. One that replaces another has a worker to go on with.
  absl::Status ended = before->has_value() ? absl::OkStatus() : CheckThreads(parsed->settings);
  if (!ended.ok()) {
    std::cerr << "epd: " << ended.message() << "\n";
    return 1;
  }
  ended = OpenLog(parsed->settings.log_level, parsed->settings.log_file);
  if (ended.ok()) {
    BlockSignals();
    TakeRequestsForStacks();
    ended = Serve({args, facts, version, OwnProgram(), *std::move(before)}, *parsed);
    stacks::Stop();
  }
  if (!ended.ok()) {
    Log(LogLevel::kError, "cannot serve",
        {{"code", absl::StatusCodeToString(ended.code())}, {"why", ended.message()}});
  }
  FlushLog(kLastLines);
  if (ended.ok()) return 0;
  std::cerr << "epd: " << ended.message() << "\n";
  return 1;
}

}  // namespace epd
