// epd: reads the configuration, starts everything in order, runs the control thread, stops in the
// reverse order.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/metrics/metrics_server.h"
#include "daemon/node/attach/instance_lock.h"
#include "daemon/node/attach/socket_file.h"
#include "daemon/node/loop/signals.h"
#include "daemon/node/node.h"
#include "daemon/node/process.h"
#include "daemon/node/settings/reload.h"
#include "daemon/node/settings/settings.h"
#include "daemon/observe/log.h"
#include "daemon/otlp/trace_exporter.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/node_api/local_trace.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/server.h"
#include "daemon/version.h"
#include "proto/stacks/stack_writer.h"

namespace epd {
namespace {

// A predecessor on its way out may take this long to let go of the socket.
constexpr absl::Duration kPredecessor = absl::Seconds(10);
// ... and the log's reader this long to take the last lines.
constexpr absl::Duration kLastLines = absl::Seconds(1);

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

// The start and stop order. Whatever is started later is stopped earlier:
//   lock, certificates, segments, gRPC, metrics, traces, attach socket, READY, [worker and control loop], STOPPING,
//   sockets, sessions, worker, traces, metrics, gRPC
absl::Status Serve(const std::vector<std::string>& args, const MachineFacts& facts,
                   ParsedSettings& parsed) {
  const Settings& settings = parsed.settings;
  if (absl::Status bad = CheckPaths(settings); !bad.ok()) return bad;
  absl::StatusOr<InstanceLock> lock = InstanceLock::Take(settings.socket, kPredecessor);
  if (!lock.ok()) return lock.status();

  const std::unique_ptr<CertificateFiles> certificates = MakeCertificateFiles(settings);
  if (absl::Status bad = certificates->Start(); !bad.ok()) return bad;
  const absl::StatusOr<std::string> secret = ReadSecretOfLinks(settings);
  if (!secret.ok()) return secret.status();
  Node node(parsed, {kVersion, HostName(), *certificates, *secret});
  if (absl::Status bad = node.AddWorkers(); !bad.ok()) return bad;
  SignalWatch signals;
  const auto on_signal = [&](int signal) {
    if (signal == SIGHUP) return ReadAgain(args, facts, parsed);
    node.BeginShutdown(settings.drain_deadline,
                       absl::UnavailableError("this epd is stopping; connect again later"));
  };
  if (absl::Status bad = signals.Start(node.loop(), on_signal); !bad.ok()) return bad;

  SupervisorWatchdog watchdog;
  if (absl::Status bad = watchdog.Start(node.loop()); !bad.ok()) return bad;

  RpcServer rpc(node);
  if (absl::Status bad = rpc.Start(); !bad.ok()) return bad;
  MetricsServer metrics(
      [&node](FiguresCache::Done done) { return AskFigures(node, std::move(done)); });
  if (absl::Status bad = metrics.Start(settings); !bad.ok()) return bad;
  TraceExporter traces(
      [&node](const v1::GetTraceRequest& request, TraceExporter::Done done) {
        return AskTraces(node, request, std::move(done));
      },
      kVersion);
  if (absl::Status bad = traces.Start(settings); !bad.ok()) return bad;
  absl::StatusOr<UniqueFd> listener = ListenAt(settings.socket);
  if (!listener.ok()) return listener.status();
  if (absl::Status bad = node.Listen(*std::move(listener)); !bad.ok()) return bad;

  Log(LogLevel::kInfo, "serving",
      {{"version", kVersion},
       {"pid", getpid()},
       {"node", settings.node},
       {"socket", settings.socket},
       {"grpc_socket", settings.grpc_socket},
       {"listen", rpc.listen_address()},
       {"metrics", metrics.address()}});
  NotifySupervisor("READY=1");
  node.Run([&] {
    NotifySupervisor("STOPPING=1");
    unlink(settings.socket.c_str());
    rpc.SetServing(false);
  });
  traces.Stop();
  metrics.Stop();
  rpc.Stop();
  unlink(settings.grpc_socket.c_str());
  Log(LogLevel::kInfo, "ended", {{"pid", getpid()}});
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  PrepareProcess();
  const MachineFacts facts = ReadMachineFacts();
  absl::StatusOr<ParsedSettings> parsed = ParseSettings(args, facts);
  if (!parsed.ok()) {
    std::cerr << "epd: " << parsed.status().message() << "\n";
    return 2;
  }
  if (parsed->help) std::cout << HelpText(facts);
  if (parsed->version) std::cout << "epd " << kVersion << "\n";
  if (parsed->print_config) std::cout << PrintConfig(*parsed);
  if (parsed->help || parsed->version || parsed->print_config) return std::cout.flush() ? 0 : 1;

  absl::Status ended = OpenLog(parsed->settings.log_level, parsed->settings.log_file);
  if (ended.ok()) {
    BlockSignals();
    if (const std::string bad = stacks::Start(stacks::Frames::kUnwound); !bad.empty())
      Log(LogLevel::kWarn, "epd cannot write its stacks on SIGUSR2", {{"why", bad}});
    ended = Serve(args, facts, *parsed);
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

}  // namespace
}  // namespace epd

int main(int argc, char** argv) {
  return epd::Main(std::vector<std::string>(argv + 1, argv + argc));
}
