#include "tests/scale/simulated_nodes.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/link_proof.h"

namespace epd::scale {
namespace {

// The default of epd's setting `heartbeat`.
constexpr absl::Duration kHeartbeat = absl::Seconds(3);
// Soon enough for that.
constexpr absl::Duration kTickEvery = absl::Milliseconds(100);

std::unique_ptr<v1::Cluster::Stub> Dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);  // A connection for each node.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return v1::Cluster::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

absl::StatusOr<std::string> Prove(v1::Cluster::Stub& stub, const NodeId& node,
                                  const std::string& secret) {
  grpc::ClientContext context;
  const v1::ChallengeRequest request = AskForChallenge(node.value);
  v1::ChallengeResponse response;
  const grpc::Status asked = stub.Challenge(&context, request, &response);
  if (!asked.ok()) return absl::UnavailableError(asked.error_message());
  return ProveNode(secret, request, response);
}

GroupSpec SpecOf(const std::string& group, uint32_t num_ranks) {
  GroupSpec spec;
  spec.name = group;
  spec.num_ranks = num_ranks;
  spec.num_experts = num_ranks;
  spec.max_tokens_per_rank = 128;
  spec.recv_capacity_per_rank = 1024;
  spec.hidden = 7168;
  spec.top_k = 8;
  spec.max_token_dtype = Dtype::kBfloat16;
  spec.executor = Executor::kClient;
  spec.backend = "cpu";
  return spec;
}

}  // namespace

struct SimulatedNodes::Node {
  size_t index = 0;  // In nodes_.
  std::unique_ptr<NodeControl> control;
  Incarnation worker;
  std::unique_ptr<v1::Cluster::Stub> stub;
  std::unique_ptr<CoordinatorStream> stream;
  bool connected = false;
  size_t num_messages = 0;
};

SimulatedNodes::SimulatedNodes(const Options& options) : options_(options) {
  for (size_t i = 0; i < options.num_nodes; ++i) {
    auto node = std::make_unique<Node>();
    const size_t number = options.first_node + i;
    NodeOptions control;
    control.node = NodeId{absl::StrCat("simulated-node-", number)};
    control.incarnation = Incarnation{1000 + number};
    control.report_interval = kHeartbeat;
    control.facts.epd_version = "scale";
    control.facts.exchange = 1;
    node->index = i;
    node->worker = Incarnation{1'000'000 + number};
    node->control = std::make_unique<NodeControl>(control);
    node->stub = Dial(options.coordinator);
    nodes_.push_back(std::move(node));
    Give(*nodes_.back(),
         WorkerStarted{{kCpuWorker, nodes_.back()->worker, false, "simulated: no NCCL"}});
  }
}

SimulatedNodes::~SimulatedNodes() {
  for (const auto& node : nodes_) {
    if (node->stream != nullptr) node->stream->Cancel();
  }
  // While what their last calls use is there: each waits until gRPC has let go of it.
  for (const auto& node : nodes_) node->stream.reset();
}

absl::Status SimulatedNodes::Connect(absl::Duration patience) {
  for (const auto& node : nodes_) {
    NodeReport hello;
    hello.node = node->control->options().node;
    hello.incarnation = node->control->options().incarnation;
    hello.facts = node->control->options().facts;
    const size_t i = node->index;
    const absl::StatusOr<std::string> proof = Prove(*node->stub, hello.node, options_.secret);
    if (!proof.ok()) return proof.status();
    node->stream = std::make_unique<CoordinatorStream>(
        *node->stub, *proof, ToProto(hello),
        [this, i](v1::ClusterView view) {
          const absl::MutexLock lock(&mutex_);
          incoming_.push_back({i, std::move(view), absl::OkStatus()});
        },
        [this, i](const absl::Status& status) {
          const absl::MutexLock lock(&mutex_);
          incoming_.push_back({i, {}, absl::UnavailableError(status.message())});
        });
  }
  const absl::Status done =
      RunUntil(absl::Now() + patience, [this] { return num_connected_ == nodes_.size(); });
  if (done.ok()) return done;
  return absl::Status(done.code(), absl::StrCat(done.message(), ": ", num_connected_, " of ",
                                                nodes_.size(), " nodes are connected"));
}

absl::Status SimulatedNodes::Form(const std::string& group, uint32_t num_ranks,
                                  absl::Duration patience) {
  num_joined_ = 0;
  epoch_ = Epoch();
  const absl::Time deadline = absl::Now() + patience;
  const GroupSpec spec = SpecOf(group, num_ranks);
  for (const auto& node : nodes_) {
    const size_t first = (options_.first_node + node->index) * options_.ranks_per_node;
    for (size_t j = 0; j < options_.ranks_per_node; ++j) {
      const SessionId session(j + 1);
      const auto pid = static_cast<int32_t>(10'000 + j);
      Give(*node,
           SessionAttached{session, pid, 0, absl::StrCat("host-", node->index), "scale", "0.1.0"});
      Give(*node, JoinRequested{session,
                                RequestId(1),
                                spec,
                                {Rank(static_cast<uint32_t>(first + j))},
                                Epoch(),
                                deadline,
                                GroupId{(first + j + 1) * 0x9e3779b97f4a7c15ULL}});
    }
  }
  const size_t expected = nodes_.size() * options_.ranks_per_node;
  const absl::Status done =
      RunUntil(deadline, [this, expected] { return num_joined_ >= expected; });
  if (done.ok()) return done;
  return absl::Status(done.code(), absl::StrCat(done.message(), ": ", num_joined_, " of ", expected,
                                                " ranks have joined"));
}

template <typename Done>
absl::Status SimulatedNodes::RunUntil(absl::Time deadline, Done done) {
  while (failure_.ok() && !done()) {
    const absl::Time now = absl::Now();
    if (now >= deadline) return absl::DeadlineExceededError("time is up");
    if (now >= next_tick_) TickThoseDue(now);
    std::deque<Incoming> arrived;
    {
      const absl::MutexLock lock(&mutex_);
      const auto some = [this] {
        mutex_.AssertHeld();
        return !incoming_.empty();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&some), kTickEvery);
      arrived.swap(incoming_);
    }
    for (const Incoming& one : arrived) {
      if (!one.ended.ok()) return one.ended;
      TakeView(*nodes_[one.node], one.view);
    }
  }
  return failure_;
}

void SimulatedNodes::TickThoseDue(absl::Time now) {
  next_tick_ = now + kTickEvery;
  for (const auto& node : nodes_) {
    if (node->control->NextDeadline() <= now) Give(*node, Tick{});
  }
}

void SimulatedNodes::TakeView(Node& node, const v1::ClusterView& message) {
  ++traffic_.views;
  traffic_.view_bytes += message.ByteSizeLong();
  ++node.num_messages;
  absl::StatusOr<ClusterView> view = FromProto(message);
  if (!view.ok()) {
    failure_ = view.status();
    return;
  }
  if (!std::exchange(node.connected, true)) {
    ++num_connected_;
    Give(node, CoordinatorConnected{view->coordinator});
  }
  Give(node, ViewReceived{*std::move(view)});
}

void SimulatedNodes::SendReportOut(Node& node, const NodeReport& report) {
  if (node.stream == nullptr) return;
  v1::NodeReport message = ToProto(report);
  ++traffic_.reports;
  traffic_.report_bytes += message.ByteSizeLong();
  ++node.num_messages;
  node.stream->Offer(std::move(message));
}

void SimulatedNodes::Give(Node& node, const NodeEvent& event) {
  for (const NodeEffect& effect : node.control->Handle(absl::Now(), event)) Run(node, effect);
  while (!events_.empty()) {
    const auto [index, next] = std::move(events_.front());
    events_.pop_front();
    Node& to = *nodes_[index];
    for (const NodeEffect& effect : to.control->Handle(absl::Now(), next)) Run(to, effect);
  }
}

void SimulatedNodes::Run(Node& node, const NodeEffect& effect) {
  if (const auto* send = std::get_if<SendReport>(&effect)) return SendReportOut(node, send->report);
  if (const auto* failed = std::get_if<ReplyFailed>(&effect)) {
    failure_.Update(failed->status);
  } else if (const auto* joined = std::get_if<ReplyJoined>(&effect)) {
    if (!epoch_) {
      epoch_ = joined->epoch;
      formation_ = joined->formation;
    }
    if (joined->epoch != epoch_ || joined->formation != formation_ ||
        joined->members.size() != joined->spec.num_ranks) {
      failure_.Update(absl::InternalError(absl::StrCat(
          "a rank was told epoch ", joined->epoch.value, " formation ", joined->formation.value,
          " with ", joined->members.size(), " members, expected ", epoch_.value, ", ",
          formation_.value, " and ", joined->spec.num_ranks)));
    }
    ++num_joined_;
  } else {
    FromWorker(node, effect);
  }
}

void SimulatedNodes::FromWorker(Node& node, const NodeEffect& effect) {
  if (const auto* start = std::get_if<StartTenant>(&effect)) {
    events_.emplace_back(node.index, TenantReady{node.worker, start->group, start->formation});
  } else if (const auto* drain = std::get_if<DrainTenant>(&effect)) {
    events_.emplace_back(node.index, TenantDrained{node.worker, drain->group, drain->formation});
  } else if (const auto* init = std::get_if<InitCommunicator>(&effect)) {
    events_.emplace_back(node.index, CommunicatorInitialised{node.worker, init->group, init->epoch,
                                                             absl::OkStatus(), ""});
  }
}

Traffic SimulatedNodes::TakeTraffic() {
  for (const auto& node : nodes_) {
    traffic_.most_of_a_node = std::max(traffic_.most_of_a_node, node->num_messages);
    node->num_messages = 0;
  }
  return std::exchange(traffic_, Traffic());
}

}  // namespace epd::scale
