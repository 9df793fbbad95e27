#include "daemon/rpc/remote_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/cluster_codec.h"

namespace epd {
namespace {

constexpr Backoff::Policy kRetry = {absl::Milliseconds(100), absl::Seconds(5), absl::Seconds(30)};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  // The back-off is ours; gRPC's own would add to it.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

RemoteCoordinator::RemoteCoordinator(const std::string& address, Node& node)
    : address_(address),
      node_(node),
      stub_(v1::Cluster::NewStub(MakeChannel(address))),
      backoff_(kRetry) {}

void RemoteCoordinator::Open(absl::Time now) {
  opened_at_ = now;
  last_heard_ = now;
  connected_ = false;
  const uint64_t number = ++stream_number_;
  NodeReport hello;
  hello.node = node_.id();
  hello.incarnation = node_.control().options().incarnation;
  stream_ = std::make_unique<CoordinatorStream>(
      *stub_, ToProto(hello),
      [this, number](const v1::ClusterView& view) {
        node_.loop().Post([this, number, view] { OnView(number, view); });
      },
      [this, number](const absl::Status& status) {
        node_.loop().Post([this, number, status] { OnEnd(number, status); });
      });
}

void RemoteCoordinator::OnView(uint64_t number, const v1::ClusterView& message) {
  if (number != stream_number_ || stream_ == nullptr) return;
  absl::StatusOr<ClusterView> view = FromProto(message);
  if (!view.ok()) {
    Log(LogLevel::kError, "coordinator's view refused",
        {{"coordinator", address_}, {"why", view.status().message()}});
    return stream_->Cancel();
  }
  last_heard_ = MonotonicNow();
  if (!connected_) {
    connected_ = true;
    Log(LogLevel::kInfo, "coordinator connected", {{"coordinator", address_}});
    node_.Handle(CoordinatorConnected{view->coordinator});
  }
  node_.Handle(ViewReceived{*std::move(view)});
}

void RemoteCoordinator::OnEnd(uint64_t number, const absl::Status& status) {
  if (number != stream_number_ || stream_ == nullptr) return;
  stream_.reset();
  const absl::Time now = MonotonicNow();
  const absl::Duration wait = backoff_.AfterEnd(now - opened_at_);
  next_try_ = now + wait;
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("no connection to the coordinator ", address_, ": ", status.message()));
  Log(LogLevel::kWarn, "coordinator lost",
      {{"coordinator", address_},
       {"why", status.ToString()},
       {"next_try", absl::FormatDuration(wait)}});
  if (std::exchange(connected_, false)) node_.Handle(CoordinatorLost{cause});
}

void RemoteCoordinator::Send(const NodeReport& report) {
  if (stream_ != nullptr) stream_->Offer(ToProto(report));
}

void RemoteCoordinator::Tick(absl::Time now) {
  if (stream_ == nullptr && now >= next_try_) return Open(now);
  // Every report is answered; one that says nothing at all is as good as gone.
  if (stream_ != nullptr && now >= last_heard_ + node_.settings().node_silence) {
    last_heard_ = now;
    stream_->Cancel();
  }
}

absl::Time RemoteCoordinator::NextDeadline() const {
  return stream_ == nullptr ? next_try_ : last_heard_ + node_.settings().node_silence;
}

}  // namespace epd
