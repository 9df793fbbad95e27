#include "daemon/node/coordination.h"

#include <algorithm>
#include <utility>

#include "daemon/node/loop/event_loop.h"
#include "daemon/node/random_number.h"

namespace epd {
namespace {

// Other nodes call again within this.
constexpr absl::Duration kContinueGrace = absl::Seconds(10);

}  // namespace

Coordination::Coordination(Options options, const ThreadRole& role, Ports ports)
    : options_(std::move(options)),
      role_(role),
      ports_(std::move(ports)),
      rendezvous_(std::make_unique<Rendezvous>(OwnOptions())),
      leader_(options_.coordinator) {}

RendezvousOptions Coordination::OwnOptions() const {
  RendezvousOptions options;
  options.incarnation = Incarnation(RandomNumber());
  options.started_at = MonotonicNow();
  options.node_silence = options_.node_silence;
  options.start_grace = options_.start_grace;
  return options;
}

RendezvousOptions Coordination::OwnOptions(const Leading& how) const {
  RendezvousOptions options = OwnOptions();
  options.floor = how.floor;
  options.expected = how.expected;
  options.expected.insert(options_.self);
  options.persistent = how.persistent;
  options.keeps_persistent = how.keep != nullptr;
  return options;
}

void Coordination::Continue(const Leading& how) {
  role_.AssertHeld();
  RendezvousOptions options = OwnOptions(how);
  options.start_grace = std::max(options.start_grace, kContinueGrace);
  rendezvous_ = std::make_unique<Rendezvous>(options);
}

void Coordination::Connect(CoordinatorLink* link, ClusterStreams* streams) {
  link_ = link;
  streams_ = streams;
}

void Coordination::Start() {
  if (link_ != nullptr) return;
  ports_.control(CoordinatorConnected{rendezvous_->incarnation()});
  Call([this](Rendezvous& own, absl::Time now) {
    return own.ConnectNode(now, options_.self, options_.incarnation);
  });
}

void Coordination::Call(const Change& call) {
  role_.AssertHeld();
  ports_.changed();
  for (const RendezvousEffect& effect : call(*rendezvous_, MonotonicNow())) ports_.perform(effect);
  if (leading_.resign && rendezvous_->max_epoch() >= leading_.resign_at)
    std::exchange(leading_.resign, nullptr)();
  KeepPersistent();
}

void Coordination::KeepPersistent() {
  if (!leading_.keep) return;
  std::vector<PersistentGroup> now = rendezvous_->Persistent();
  if (now == leading_.persistent) return;
  leading_.persistent = std::move(now);
  leading_.keep(leading_.persistent);
}

void Coordination::Report(const NodeReport& report) {
  if (link_ != nullptr) return link_->Send(report);
  Call([&](Rendezvous& own, absl::Time now) { return own.TakeReport(now, report); });
}

void Coordination::Show(const ClusterView& view) {
  if (view.node == options_.self) return ports_.control(ViewReceived{view});
  if (streams_ != nullptr) streams_->Send(view);
}

void Coordination::TickLink(absl::Time now) {
  if (link_ != nullptr) link_->Tick(now);
}

void Coordination::TickOwn(absl::Time now) {
  if (now < rendezvous_->NextDeadline()) return;
  Call([](Rendezvous& own, absl::Time t) { return own.Tick(t); });
}

absl::Time Coordination::NextDeadline() const {
  const absl::Time own = rendezvous_->NextDeadline();
  return link_ == nullptr ? own : std::min(own, link_->NextDeadline());
}

void Coordination::Ask(const v1::AskNodesRequest& request, OnAsked done) {
  if (link_ != nullptr) return link_->Ask(request, std::move(done));
  asking_->Ask(request, std::move(done));
}

void Coordination::Lead(const Leading& how) {
  role_.AssertHeld();
  leading_ = how;
  rendezvous_ = std::make_unique<Rendezvous>(OwnOptions(how));
  link_ = nullptr;
  Start();
}

void Coordination::StopLeading(CoordinatorLink& link, const absl::Status& why) {
  role_.AssertHeld();
  leading_ = Leading{};
  rendezvous_ = std::make_unique<Rendezvous>(OwnOptions());
  link_ = &link;
  ports_.control(CoordinatorLost{why});
}

void Coordination::SetLeader(std::string leader, std::string why_none) {
  leader_ = std::move(leader);
  why_no_leader_ = std::move(why_none);
}

}  // namespace epd
