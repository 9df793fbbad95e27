#include "daemon/rpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/node/attach/socket_file.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/node_api/node_health.h"
#include "daemon/tls/address.h"
#include "proto/machine/thread.h"

namespace epd {
namespace {

constexpr int kMaxMessageBytes = 16 << 20;
// Of all calls together, in gRPC: 64 of the largest messages.
constexpr size_t kMaxBufferedBytes = 64 * size_t{kMaxMessageBytes};
constexpr std::chrono::seconds kStopPatience(1);
// epd gives up on an orderly end when calls that were cancelled have not ended by then.
constexpr std::chrono::seconds kWaitPatience(10);

RoleRules MakeRules(const Settings& settings) {
  return {.own_uid = geteuid(),
          .tls = !settings.tls_ca.empty(),
          .operators = absl::StrSplit(settings.operators, ',', absl::SkipWhitespace()),
          .nodes = absl::StrSplit(settings.nodes, ',', absl::SkipWhitespace())};
}

// One line a second at most: whoever reaches a socket can make libraries speak of what it sent.
void LogLineOfLibrary(LogLevel level, absl::string_view library, const std::string& text) {
  static std::atomic<int64_t> last{0};
  static std::atomic<uint64_t> left_out{0};
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  if (level != LogLevel::kDebug && last.exchange(now) == now) {
    left_out.fetch_add(1);
    return;
  }
  Log(level, absl::StrCat(library, " says"), {{"text", text}, {"left_out", left_out.exchange(0)}});
}

void EndProcessAfter(std::chrono::seconds patience) {
  struct sigaction action = {};
  action.sa_handler = [](int) { _exit(EXIT_FAILURE); };
  sigaction(SIGALRM, &action, nullptr);
  alarm(static_cast<unsigned>(patience.count()));
}

// gRPC and protobuf would write to standard error themselves, and wait for whoever reads it.
void TakeLinesOfLibraries() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
    LogLineOfLibrary(error ? LogLevel::kWarn : LogLevel::kDebug, "grpc", line->message);
  });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& text) {
        LogLineOfLibrary(LogLevel::kWarn, "protobuf", text);
      });
}

}  // namespace

RpcServer::RpcServer(Node& node)
    : node_(node),
      watchers_(node),
      callers_(node.loop()),
      gate_(callers_, MakeRules(node.settings()), node.identity().cluster_secret),
      service_(node, watchers_, gate_),
      cluster_(node, gate_) {
  const Settings& settings = node.settings();
  if (!settings.coordinator.empty()) {
    coordinator_ = std::make_unique<RemoteCoordinator>(settings.coordinator, node, cluster_);
  }
  node_.coordination().Connect(coordinator_.get(), settings.listen.empty() ? nullptr : &cluster_);
  node_.coordination().SetAsking(cluster_);
  node_.SetWatcher([this] { OnChange(); });
}

absl::Status RpcServer::Start(const std::string& before) {
  TakeLinesOfLibraries();
  const Settings& settings = node_.settings();
  const std::string listen = KeepPort(settings.listen, before);
  if (absl::Status bad = CheckLinks(settings); !bad.ok()) return bad;
  absl::StatusOr<EtcdAddress> etcd = EtcdAddress();
  if (!settings.rendezvous.empty()) etcd = ParseEtcdAddress(settings.rendezvous);
  if (!etcd.ok()) return etcd.status();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("epd").Resize(kMaxBufferedBytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                             0);  // A second epd on a port must fail, not share it.
  int tcp_bound = 0;
  if (!listen.empty()) {
    builder.AddListeningPort(
        listen, MakeServerCredentials(node_.certificates().served(), LogRefusedPeer()), &tcp_bound);
  }
  builder.RegisterService(&service_);
  // The Unix socket has it too, where nobody calls it: gRPC has one set of services per server.
  if (!listen.empty()) builder.RegisterService(&cluster_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || (!listen.empty() && tcp_bound == 0)) {
    const std::string why = WhyNotBound(HostOf(listen));
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot serve gRPC on '", listen, "' (listen): ",
        why.empty() ? "somebody else may have the port" : why, "; is the address free and local?"));
  }
  if (absl::Status bad = callers_.Listen(settings.grpc_socket); !bad.ok()) return bad;
  if (absl::Status bad = callers_.Serve(*server_); !bad.ok()) return bad;
  if (tcp_bound != 0) {
    listen_address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", tcp_bound);
  }
  const std::string& address = settings.advertise.empty() ? listen_address_ : settings.advertise;
  cluster_.SetOwnAddress(address);
  if (!settings.rendezvous.empty()) {
    chosen_ = std::make_unique<ChosenCoordinator>(node_, cluster_, *std::move(etcd),
                                                  tcp_bound == 0 ? "" : address);
    node_.coordination().Connect(chosen_.get(), &cluster_);
    if (absl::Status bad = chosen_->Start(); !bad.ok()) return bad;
  }
  SetServing(true);
  return absl::OkStatus();
}

absl::Status RpcServer::ListenAgain() {
  absl::Status again = PrepareFolderOf(node_.settings().grpc_socket);
  if (again.ok()) again = callers_.Listen(node_.settings().grpc_socket);
  if (again.ok()) again = callers_.Serve(*server_);
  return again;
}

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus("epd.v1.Node", serving);
}

void RpcServer::OnChange() {
  callers_.Resume();
  watchers_.Update();
  std::map<std::string, bool> serving = ServingByService(node_);
  for (const auto& [service, served] : serving_) serving.emplace(service, false);  // It has ended.
  for (const auto& [service, served] : serving) {
    const auto known = serving_.find(service);
    if (known != serving_.end() && known->second == served) continue;
    server_->GetHealthCheckService()->SetServingStatus(service, served);
  }
  serving_ = std::move(serving);
}

void RpcServer::Stop() {
  if (server_ == nullptr) return;
  node_.SetWatcher(nullptr);
  node_.coordination().Connect(nullptr, nullptr);
  coordinator_.reset();
  chosen_.reset();
  watchers_.FinishAll(absl::UnavailableError("epd ends"));
  cluster_.FinishAll(absl::UnavailableError("epd ends"));
  service_.FinishAll();
  callers_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kStopPatience);
  WaitForCalls();
  server_.reset();
}

// gRPC's Wait knows no deadline. A call that never ends holds this object, so there is no way on.
void RpcServer::WaitForCalls() {
  std::promise<void> all_ended;
  std::future<void> ended = all_ended.get_future();
  const auto wait = [this, &all_ended] {
    server_->Wait();
    all_ended.set_value();
  };
  Thread waiter;
  if (const int error = StartThread({"epd-last-calls"}, wait, &waiter); error != 0) {
    Log(LogLevel::kWarn, "epd waits for gRPC's calls without a thread beside",
        {{"why", WhyNoThread("epd-last-calls", error)}});
    EndProcessAfter(kWaitPatience);
    server_->Wait();
    alarm(0);
    return;
  }
  if (ended.wait_for(kWaitPatience) == std::future_status::timeout) {
    Log(LogLevel::kError, "gRPC calls do not end",
        {{"waited_s", kWaitPatience.count()}, {"then", "epd ends without them"}});
    _exit(EXIT_FAILURE);
  }
  waiter.join();
}

}  // namespace epd
