#include "daemon/rpc/cluster/cluster_service.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/cluster/clock_probe.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/newest_writer.h"
#include "daemon/tls/address.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// A stream that has been silent for longer is not worth a refusal of its successor.
constexpr absl::Duration kSilent = absl::Seconds(3);
constexpr size_t kMaxArrived = 1 << 16;

// A node of the first release says nothing of its protocol; it speaks version 1.
absl::Status CheckProtocol(const v1::NodeReport& in, const std::string& own_version) {
  const uint32_t min = in.min_protocol() == 0 ? 1 : in.min_protocol();
  const uint32_t max = in.max_protocol() == 0 ? 1 : in.max_protocol();
  if (min <= kMaxClusterProtocol && max >= kMinClusterProtocol) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "node ", in.node(), " (epd ", in.facts().epd_version(), ") speaks cluster protocol ", min,
      " to ", max, ", the coordinator (epd ", own_version, ") ", kMinClusterProtocol, " to ",
      kMaxClusterProtocol, "; upgrade ",
      min > kMaxClusterProtocol ? "the coordinator's node" : absl::StrCat("node ", in.node())));
}

// `address` as others can use it: where it names no host, that of the connection's other end.
std::string Reachable(const std::string& address, const std::string& peer) {
  const std::string host = HostOf(address);
  if (host != "0.0.0.0" && host != "::") return address;
  const std::string other = HostOf(peer);
  const std::string port = address.substr(address.rfind(':'));
  return absl::StrContains(other, ':') ? absl::StrCat("[", other, "]", port)
                                       : absl::StrCat(other, port);
}

}  // namespace

class ClusterStream : public ServedWriter<grpc::ServerBidiReactor<v1::NodeReport, v1::ClusterView>,
                                          v1::ClusterView> {
 public:
  using OnMessage = std::function<void(v1::NodeReport)>;
  using OnUnread = std::function<void(bool cancelled)>;

  // Both are called on gRPC's threads, one call at a time; `on_unread` is the last. `context` is the call's.
  void Start(const grpc::CallbackServerContext& context, OnMessage on_message, OnUnread on_unread) {
    context_ = &context;
    on_message_ = std::move(on_message);
    on_unread_ = std::move(on_unread);
    StartRead(&incoming_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return on_unread_(context_->IsCancelled());
    on_message_(std::exchange(incoming_, v1::NodeReport()));
    StartRead(&incoming_);
  }

  // Does as Offer, but keeps a question that has not gone out yet.
  void OfferView(v1::ClusterView view) {
    Amend(v1::ClusterView(), [&](v1::ClusterView& waiting) {
      view.mutable_questions()->Swap(waiting.mutable_questions());
      waiting = std::move(view);
    });
  }

  // After all that was read was judged, which may have ended it. A node that ends cancels its call; gRPC does not say whether
  // another one said something that does not parse.
  void EndUnread(bool cancelled) {
    const absl::Status why = absl::InvalidArgumentError(
        "got something that is no NodeReport, or the end of the stream; the node connects again");
    const bool ends = End(cancelled ? grpc::Status::OK : ToGrpc(why));
    if (!ends || cancelled) return;
    Log(LogLevel::kWarn, "node's stream ended", {{"address", peer}, {"why", why.message()}});
  }

  // Control thread only.
  NodeId node;  // Empty until the first report.
  Incarnation incarnation;
  uint32_t protocol = kMinClusterProtocol;  // The highest that both sides speak.
  absl::Time last_report;
  std::string no_ids;   // See WhyNoIds; set once.
  std::string peer;     // gRPC's name of the connection's other end; set once.
  Caller caller;        // Set once.
  std::string address;  // Where the node takes calls; "": nowhere.

 private:
  const grpc::CallbackServerContext* context_ = nullptr;
  v1::NodeReport incoming_;
  OnMessage on_message_;
  OnUnread on_unread_;
};

ClusterService::ClusterService(Node& node, const CallerGate& gate)
    : node_(node), gate_(gate), asking_(node), peers_(node) {}
ClusterService::~ClusterService() = default;

grpc::ServerUnaryReactor* ClusterService::Challenge(grpc::CallbackServerContext* context,
                                                    const v1::ChallengeRequest* request,
                                                    v1::ChallengeResponse* response) {
  absl::StatusOr<v1::ChallengeResponse> answer =
      gate_.proof().Answer(*request, context->peer(), absl::Now());
  const absl::Status status = answer.status();
  if (status.ok()) *response = *std::move(answer);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::ReadClock(grpc::CallbackServerContext* context,
                                                    const v1::ReadClockRequest*,
                                                    v1::ReadClockResponse* response) {
  response->set_received_ns(MonotonicNanos());
  const absl::Status admitted = gate_.Admit("Cluster/ReadClock", *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  response->set_unix_ns(absl::ToUnixNanos(absl::Now()));
  response->set_sent_ns(MonotonicNanos());
  reactor->Finish(ToGrpc(admitted));
  return reactor;
}

grpc::ServerBidiReactor<v1::NodeReport, v1::ClusterView>* ClusterService::Sync(
    grpc::CallbackServerContext* context) {
  Caller caller = gate_.Identify(*context);
  if (absl::Status bad = gate_.Admit("Cluster/Sync", *context, caller); !bad.ok())
    return new RefusedCall<grpc::ServerBidiReactor<v1::NodeReport, v1::ClusterView>>(ToGrpc(bad));
  auto stream = std::make_shared<ClusterStream>();
  stream->caller = std::move(caller);
  stream->peer = context->peer();
  stream->no_ids = WhyNoIds(node_.settings(), stream->peer);
  const std::weak_ptr<ClusterStream> weak = stream;
  if (const absl::Status taken = node_.loop().PostRequest([this, stream] { Begin(stream); });
      !taken.ok()) {
    stream->KeepUntilDone(stream);
    stream->End(ToGrpc(taken));
    return stream.get();
  }
  stream->Start(
      *context, [this, weak](v1::NodeReport report) { Arrived(weak, std::move(report)); },
      [this, weak](bool cancelled) {
        node_.loop().Post([weak, cancelled] {
          if (const auto alive = weak.lock()) alive->EndUnread(cancelled);
        });
      });
  return stream.get();
}

// Any of gRPC's threads. What arrives while control is busy is taken together.
void ClusterService::Arrived(const std::weak_ptr<ClusterStream>& stream, v1::NodeReport report) {
  {
    const absl::MutexLock lock(&mutex_);
    if (arrived_.size() >= kMaxArrived) return;  // The node's next one says it all again.
    arrived_.push_back({stream, std::move(report)});
    if (arrived_.size() > 1) return;  // Control has been told.
  }
  node_.loop().Post([this] { TakeArrived(); });
}

void ClusterService::TakeArrived() {
  std::vector<Arrival> arrived;
  {
    const absl::MutexLock lock(&mutex_);
    arrived.swap(arrived_);
  }
  std::vector<NodeReport> reports;
  for (const Arrival& one : arrived) {
    const std::shared_ptr<ClusterStream> alive = one.stream.lock();
    if (alive == nullptr) continue;
    // What control was told for an earlier report may bring a new stream's first one along.
    if (alive->node.value.empty()) Begin(alive);
    absl::StatusOr<NodeReport> report = Check(*alive, one.report);
    if (report.ok() && report->seq != 0) reports.push_back(*std::move(report));
  }
  EPD_FAILPOINT_REORDER("epd.reports.order", reports);
  if (reports.empty()) return;
  EPD_FAILPOINT("epd.reports.received");
  node_.coordination().Call(
      [&](Rendezvous& coordinator, absl::Time at) { return coordinator.TakeReports(at, reports); });
}

void ClusterService::Begin(const std::shared_ptr<ClusterStream>& stream) {
  std::erase_if(streams_, [](const auto& known) { return known->done(); });
  if (!absl::c_linear_search(streams_, stream)) streams_.push_back(stream);
}

absl::Status ClusterService::Introduce(ClusterStream& stream, const NodeReport& report) {
  if (!node_.coordination().is_here()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", node_.id().value, " does not coordinate, it follows ",
        node_.coordination().leader().empty() ? "nobody" : node_.coordination().leader(),
        "; follow the same coordinator"));
  }
  const absl::Time now = MonotonicNow();
  bool taken = report.node == node_.id();
  for (const auto& other : streams_) {
    if (other.get() == &stream || other->done() || other->node != report.node) continue;
    const bool same_run = other->incarnation == report.incarnation;
    if (!same_run && now < other->last_report + kSilent) {
      taken = true;
    } else {
      other->node = NodeId();
      other->End(ToGrpc(absl::AbortedError("the node has opened another stream")));
    }
  }
  if (taken) {
    return absl::AlreadyExistsError(absl::StrCat(
        "another living epd is the node '", report.node.value, "'; give each node its own --node"));
  }
  EPD_FAILPOINT("epd.node.connected");
  stream.node = report.node;
  stream.incarnation = report.incarnation;
  Log(LogLevel::kInfo, "node connected", {{"peer", report.node.value}});
  node_.coordination().Call([&](Rendezvous& coordinator, absl::Time at) {
    return coordinator.ConnectNode(at, report.node, report.incarnation, {stream.no_ids});
  });
  return absl::OkStatus();
}

absl::StatusOr<NodeReport> ClusterService::Check(ClusterStream& stream,
                                                 const v1::NodeReport& message) {
  absl::StatusOr<NodeReport> report = FromProto(message);
  absl::Status bad = report.status();
  if (bad.ok() && stream.node.value.empty()) {
    bad = CheckProtocol(message, node_.identity().version);
    stream.protocol = std::clamp(message.max_protocol(), kMinClusterProtocol, kMaxClusterProtocol);
    stream.address = Reachable(text::Clean(message.address(), limits::kNameBytes), stream.peer);
    bad.Update(gate_.AdmitNode(message.node(), stream.caller));
    if (bad.ok()) bad = Introduce(stream, *report);
  }
  if (bad.ok() && (report->node != stream.node || report->incarnation != stream.incarnation)) {
    bad = absl::InvalidArgumentError(absl::StrCat("got a report of node ", report->node.value,
                                                  " on the stream of ", stream.node.value));
  }
  if (!bad.ok()) {
    Log(LogLevel::kWarn, "node refused",
        {{"peer", text::Clean(message.node(), limits::kNameBytes)}, {"why", bad.message()}});
    stream.End(ToGrpc(bad));
    return bad;
  }
  stream.last_report = MonotonicNow();
  for (const v1::ClusterAnswer& answer : message.answers()) asking_.Take(stream.node, answer);
  return report;
}

PeerQuestions::Nodes ClusterService::ConnectedNodes() const {
  PeerQuestions::Nodes nodes;
  const auto add = [&](const std::string& node, const std::string& address) {
    v1::ClusterNode& one = *nodes.Add();
    one.set_node(node);
    one.set_address(address);
  };
  // The others know how to reach a coordinator that listens everywhere: they follow it.
  add(node_.id().value, own_address_);
  for (const auto& stream : streams_) {
    if (!stream->done() && !stream->node.value.empty()) add(stream->node.value, stream->address);
  }
  return nodes;
}

void ClusterService::Send(const ClusterView& view) {
  const PeerQuestions::Nodes nodes = ConnectedNodes();
  peers_.Take(nodes);  // For when it coordinates no more.
  for (const auto& stream : streams_) {
    if (stream->node != view.node || stream->done()) continue;
    v1::ClusterView message = ToProto(view, stream->protocol, &formations_);
    if (!stream->no_ids.empty()) WithholdIds(stream->no_ids, message);
    *message.mutable_nodes() = nodes;
    if (EPD_FAILPOINT_FAILS("epd.view.half_open")) continue;
    stream->OfferView(std::move(message));
  }
}

void ClusterService::Ask(const v1::AskNodesRequest& request, OnAsked done) {
  std::set<NodeId> asked;
  for (const auto& stream : streams_) {
    if (!stream->done() && !stream->node.value.empty()) asked.insert(stream->node);
  }
  const uint64_t number = asking_.Begin(request, asked, std::move(done));
  for (const auto& stream : streams_) {
    if (asked.count(stream->node) == 0 || stream->done()) continue;
    v1::ClusterView fresh;
    fresh.set_coordinator(node_.coordination().rendezvous().incarnation().value);
    fresh.set_node(stream->node.value);
    stream->Amend(std::move(fresh), [&](v1::ClusterView& view) {
      v1::ClusterQuestion& question = *view.add_questions();
      question.set_question_id(number);
      question.set_method(request.method());
      question.set_request(request.request());
    });
  }
}

grpc::ServerUnaryReactor* ClusterService::AskNodes(grpc::CallbackServerContext* context,
                                                   const v1::AskNodesRequest* request,
                                                   v1::AskNodesResponse* response) {
  if (absl::Status bad = gate_.Admit(MethodOf<v1::AskNodesRequest>("Cluster"), *context); !bad.ok())
    return new RefusedCall<grpc::ServerUnaryReactor>(ToGrpc(bad));
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    if (request->alone()) {
      return AnswerQuestion(node_, request->method(), request->request(),
                            [this, response, finish](const v1::ClusterAnswer& said) {
                              v1::AskNodesResponse::Node& own = *response->add_nodes();
                              own.set_node(node_.id().value);
                              *own.mutable_status() = said.status();
                              own.set_response(said.response());
                              finish(absl::OkStatus());
                            });
    }
    if (!node_.coordination().is_here()) {
      return finish(absl::FailedPreconditionError(absl::StrCat(
          "node ", node_.id().value, " does not coordinate; ask ", node_.coordination().leader())));
    }
    Ask(*request, [response, finish](absl::StatusOr<v1::AskNodesResponse> answer) {
      const absl::Status status = answer.status();
      if (status.ok()) *response = *std::move(answer);
      finish(status);
    });
  });
}

void ClusterService::FinishAll(const absl::Status& status) {
  peers_.FinishAll(status);
  for (const auto& stream : streams_) stream->End(ToGrpc(status));
}

}  // namespace epd
