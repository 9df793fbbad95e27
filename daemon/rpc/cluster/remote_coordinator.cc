#include "daemon/rpc/cluster/remote_coordinator.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/cluster/link_proof.h"
#include "daemon/rpc/cluster/node_questions.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// A connection that outlived a node's silence was good. Else a coordinator that stands still again and again would be tried
// ever later, until it takes this node for lost.
Backoff::Policy RetryPolicy(const Settings& settings) {
  return {absl::Milliseconds(100), absl::Seconds(5), NodeSilence(settings),
          Backoff::kTowardsOthers};
}

}  // namespace

RemoteCoordinator::RemoteCoordinator(const std::string& address, Node& node,
                                     ClusterService& cluster, std::function<void()> on_refused)
    : address_(address),
      node_(node),
      cluster_(cluster),
      on_refused_(std::move(on_refused)),
      no_ids_(WhyNoIds(node.settings(), address)),
      link_(address, node),
      clock_(link_, node.loop()),
      backoff_(RetryPolicy(node.settings()), node.control().options().incarnation.value) {}

void RemoteCoordinator::Open(absl::Time now) {
  opened_at_ = now;
  connected_ = false;
  const absl::Duration patience = NodeSilence(node_.settings());
  next_try_ = now + 2 * patience;  // Should nothing come of this one.
  const uint64_t number = ++stream_number_;
  link_.Prove(patience, [this, number, weak = std::weak_ptr<int>(alive_),
                         &loop = node_.loop()](const absl::StatusOr<std::string>& proof) {
    loop.Post([this, number, proof, weak] {
      if (!weak.expired() && number == stream_number_) Start(number, proof);
    });
  });
}

void RemoteCoordinator::Start(uint64_t number, const absl::StatusOr<std::string>& proof) {
  if (!proof.ok()) return Lost(proof.status());
  EPD_FAILPOINT("epd.link.start");
  last_heard_ = MonotonicNow();
  const std::weak_ptr<int> weak = alive_;
  stream_ = std::make_unique<CoordinatorStream>(
      link_.stub(), *proof, Hello(),
      [this, number, weak](v1::ClusterView view) {
        // One that is refused is as good as lost on the way: the next one says it all again.
        node_.loop()
            .PostRequest([this, number, view = std::move(view), weak] {
              if (!weak.expired()) OnView(number, view);
            })
            .IgnoreError();
      },
      [this, number, weak](const absl::Status& status) {
        node_.loop().Post([this, number, status, weak] {
          if (!weak.expired()) OnEnd(number, status);
        });
      });
}

void RemoteCoordinator::OnView(uint64_t number, const v1::ClusterView& message) {
  if (number != stream_number_ || stream_ == nullptr) return;
  for (const v1::ClusterQuestion& question : message.questions()) OnQuestion(question);
  if (message.seq() == 0) return;  // Nothing but questions.
  absl::StatusOr<ClusterView> view = FromProto(message);
  if (!view.ok()) {
    Log(LogLevel::kError, "coordinator's view refused",
        {{"coordinator", address_}, {"why", view.status().message()}});
    return stream_->Cancel();
  }
  EPD_FAILPOINT("epd.view.received");
  cluster_.peers().Take(message.nodes());
  last_heard_ = MonotonicNow();
  if (!connected_) {
    connected_ = true;
    Log(LogLevel::kInfo, "coordinator connected", {{"coordinator", address_}});
    node_.Handle(CoordinatorConnected{view->coordinator});
  }
  node_.Handle(ViewReceived{*std::move(view)});
}

void RemoteCoordinator::OnQuestion(const v1::ClusterQuestion& question) {
  AnswerQuestion(node_, question.method(), question.request(),
                 [this, weak = std::weak_ptr<int>(alive_),
                  number = question.question_id()](const v1::ClusterAnswer& said) {
                   if (weak.expired() || stream_ == nullptr) return;
                   v1::ClusterAnswer answer = said;
                   answer.set_question_id(number);
                   stream_->Answer(Hello(), std::move(answer));
                 });
}

void RemoteCoordinator::Ask(const v1::AskNodesRequest& request, OnAsked done) {
  struct Call {
    grpc::ClientContext context;
    v1::AskNodesRequest request;
    v1::AskNodesResponse response;
  };
  if (!connected_) return cluster_.peers().Ask(request, std::move(done));
  auto call = std::make_shared<Call>();
  call->request = request;
  const absl::Duration patience = kAskPatience + kAskPatience / 3;
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  const auto finish = [this, weak = std::weak_ptr<int>(alive_), call, done = std::move(done),
                       &loop = node_.loop()](const absl::Status& status) {
    loop.Post([this, weak, call, done, status] {
      if (status.ok()) return done(call->response);
      // It is gone, and the stream has not noticed yet.
      if (!weak.expired()) return cluster_.peers().Ask(call->request, done);
      done(status);
    });
  };
  link_.Prove(patience, [this, weak = std::weak_ptr<int>(alive_), call, finish,
                         &loop = node_.loop()](const absl::StatusOr<std::string>& proof) {
    if (!proof.ok()) return finish(proof.status());
    if (!proof->empty()) call->context.AddMetadata(kNodeProofKey, *proof);
    loop.Post([this, weak, call, finish] {
      if (weak.expired()) return finish(absl::UnavailableError("another node coordinates now"));
      link_.stub().async()->AskNodes(
          &call->context, &call->request, &call->response,
          [finish](const grpc::Status& status) { finish(FromGrpc(status)); });
    });
  });
}

std::optional<v1::ClockOffset> RemoteCoordinator::CompareClocks() {
  if (!connected_) return std::nullopt;
  clock_.Ask();
  const std::optional<ClockOffset::Estimate> best = clock_.Best();
  if (!best.has_value()) return std::nullopt;
  v1::ClockOffset clock;
  clock.set_reference(address_);
  clock.set_offset_ns(best->offset_ns);
  clock.set_round_trip_ns(static_cast<uint64_t>(best->round_trip_ns));
  clock.set_num_samples(static_cast<uint32_t>(best->num_samples));
  clock.set_reference_epoch_ns(clock_.reference_epoch_ns());
  return clock;
}

v1::NodeReport RemoteCoordinator::Hello() const {
  NodeReport hello;
  hello.node = node_.id();
  hello.incarnation = node_.control().options().incarnation;
  hello.facts = node_.control().options().facts;
  v1::NodeReport message = ToProto(hello);
  message.set_address(cluster_.own_address());
  return message;
}

void RemoteCoordinator::OnEnd(uint64_t number, const absl::Status& status) {
  if (number != stream_number_ || stream_ == nullptr) return;
  stream_.reset();
  Lost(status);
}

void RemoteCoordinator::Lost(const absl::Status& why) {
  const absl::Time now = MonotonicNow();
  const absl::Duration wait = backoff_.AfterEnd(now - opened_at_);
  next_try_ = now + wait;
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("no connection to the coordinator ", address_, ": ", why.message()));
  // Once per state, however often it is tried.
  const bool news = connected_ || why.code() != lost_with_;
  lost_with_ = why.code();
  if (news) {
    Log(LogLevel::kWarn, "coordinator lost",
        {{"coordinator", address_},
         {"why", why.ToString()},
         {"next_try", absl::FormatDuration(wait)}});
  }
  connected_ = false;
  if (news) node_.Handle(CoordinatorLost{cause});
  // gRPC has no code of its own for it. Last: it may replace this object.
  if (on_refused_ && absl::StrContains(why.message(), "Connection refused")) on_refused_();
}

void RemoteCoordinator::Send(const NodeReport& report) {
  if (stream_ == nullptr || EPD_FAILPOINT_FAILS("epd.link.half_open")) return;
  v1::NodeReport message = ToProto(report);
  if (!no_ids_.empty()) WithholdIds(no_ids_, message);
  stream_->OfferReport(std::move(message));
}

void RemoteCoordinator::Tick(absl::Time now) {
  if (stream_ == nullptr && now >= next_try_) return Open(now);
  // Every report is answered; one that says nothing at all is as good as gone.
  if (stream_ != nullptr && now >= last_heard_ + NodeSilence(node_.settings())) {
    last_heard_ = now;
    stream_->Cancel();
  }
}

absl::Time RemoteCoordinator::NextDeadline() const {
  return stream_ == nullptr ? next_try_ : last_heard_ + NodeSilence(node_.settings());
}

}  // namespace epd
