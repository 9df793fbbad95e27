#include "daemon/node/node.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/observe/log.h"

namespace epd {
namespace {

// A stopping worker closes its devices; then it is killed.
constexpr absl::Duration kWorkerEnds = absl::Seconds(5);

// Version of what workers say to each other across nodes; raise it when it changes.
constexpr uint32_t kExchangeVersion = 1;

// Of NVIDIA's kernel driver; "" without one.
std::string DriverVersion() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

Executor ParseExecutor(const std::string& name) {
  if (name == "client") return Executor::kClient;
  return name == "worker" ? Executor::kWorker : Executor::kDefault;
}

}  // namespace

Node::Node(const ParsedSettings& settings, Options options)
    : parsed_(settings),
      version_(options.version),
      host_(options.host),
      self_{settings.settings.node},
      incarnation_(RandomNumber()),
      started_(MonotonicNow()),
      control_(ControlOptions()),
      rendezvous_(std::make_unique<Rendezvous>(CoordinatorOptions())),
      workers_({loop_,
                [this](NodeEvent event) { Handle(std::move(event)); },
                {kCpuWorker, host_, [this](GroupId group) { return DescribeGroup(group); },
                 [this](const v1::WorkerPast& past) { past_.Take(past); }},
                [this](const WorkerName& name) { return WorkerOptions(name); }}),
      past_([this](const WorkerName& to, const v1::ToWorker& message) {
        workers_.Send(to, message);
      }),
      client_gateway_(
          {host_, spec_defaults(), [this](const std::string& name) { return CheckRoom(name); },
           [this] { return Gpus(); }},
          [this](NodeEvent event) { Handle(std::move(event)); }, workers_),
      clients_(ClientOptions(), loop_, client_gateway_),
      effects_(Targets()),
      idle_since_(started_) {
  leader_ = settings.settings.coordinator;
  workers_.SetServer(&clients_);
  client_gateway_.SetServer(&clients_);
}

Node::~Node() = default;

absl::Duration Node::node_silence() const {
  const Settings& s = settings();
  return s.node_silence > absl::ZeroDuration() ? s.node_silence : s.heartbeat * 5 / 2;
}

SpecDefaults Node::spec_defaults() const {
  const Settings& s = settings();
  SpecDefaults defaults;
  defaults.deadlines = {s.warn_after, s.absent, s.undecided, s.form};
  defaults.executor = ParseExecutor(s.executor);
  return defaults;
}

NodeOptions Node::ControlOptions() const {
  NodeOptions options;
  options.node = self_;
  options.incarnation = Incarnation(incarnation_);
  options.facts.epd_version = version_;
  options.facts.exchange = kExchangeVersion;
  options.facts.driver_version = DriverVersion();
  options.report_interval = settings().heartbeat;
  // Alone with its coordinator in one process, nothing can be lost.
  if (settings().coordinator.empty() && settings().listen.empty())
    options.report_interval = absl::InfiniteDuration();
  return options;
}

RendezvousOptions Node::CoordinatorOptions() const {
  RendezvousOptions options;
  options.incarnation = Incarnation(RandomNumber());
  options.started_at = MonotonicNow();
  const bool alone = settings().listen.empty();
  options.node_silence = alone ? absl::InfiniteDuration() : node_silence();
  options.start_grace = alone ? absl::ZeroDuration() : settings().start_grace;
  return options;
}

AttachServer::Options Node::ClientOptions() const {
  AttachServer::Options options;
  options.node = settings().node;
  options.version = version_;
  options.incarnation = incarnation_;
  options.max_sessions = static_cast<uint32_t>(settings().max_sessions);
  return options;
}

EffectSender::Targets Node::Targets() {
  return {self_,
          clients_,
          workers_,
          orders_,
          [this](const NodeReport& report) { SendReportOut(report); },
          [this](const ClusterView& view) { SendViewOut(view); },
          [this] {
            role_.AssertHeld();
            done_ = true;
          }};
}

void Node::SetCluster(CoordinatorLink* link, ClusterStreams* streams) {
  link_ = link;
  streams_ = streams;
}

absl::Status Node::Listen(UniqueFd listener) { return clients_.Start(std::move(listener)); }

void Node::Handle(NodeEvent event) {
  role_.AssertHeld();
  events_.push_back(std::move(event));
}

void Node::DrainEvents() {
  while (!events_.empty()) {
    const NodeEvent event = std::move(events_.front());
    events_.pop_front();
    changed_ = true;
    for (const NodeEffect& effect : control_.Handle(MonotonicNow(), event)) effects_.Run(effect);
  }
}

void Node::WithRendezvous(const std::function<Rendezvous::Effects(Rendezvous&, absl::Time)>& call) {
  role_.AssertHeld();
  changed_ = true;
  for (const RendezvousEffect& effect : call(*rendezvous_, MonotonicNow())) effects_.Run(effect);
  if (leading_.resign && rendezvous_->max_epoch() >= leading_.resign_at)
    std::exchange(leading_.resign, nullptr)();
  KeepPersistent();
}

void Node::KeepPersistent() {
  if (!leading_.keep) return;
  std::vector<PersistentGroup> now = rendezvous_->Persistent();
  if (now == leading_.persistent) return;
  leading_.persistent = std::move(now);
  leading_.keep(leading_.persistent);
}

void Node::SendReportOut(const NodeReport& report) {
  if (link_ != nullptr) return link_->Send(report);
  WithRendezvous([&](Rendezvous& own, absl::Time now) { return own.OnReport(now, report); });
}

void Node::SendViewOut(const ClusterView& view) {
  if (view.node == self_) return Handle(ViewReceived{view});
  if (streams_ != nullptr) streams_->Send(view);
}

void Node::Run(std::function<void()> on_stopping) {
  role_.Take();
  on_stopping_ = std::move(on_stopping);
  if (link_ == nullptr) FollowOwn();
  while (!done_) Turn();
  const absl::Status ended = absl::UnavailableError("epd ends");
  while (!clients_.sessions().empty()) clients_.End(clients_.sessions().begin()->first, ended);
  for (Waiting& waiting : std::exchange(waiting_, {})) waiting.then();
  workers_.Stop(MonotonicNow() + (hurry_ ? absl::ZeroDuration() : kWorkerEnds));
  // Whoever asked meanwhile gets an answer: gRPC waits for every call that it has handed out.
  loop_.ClosePosts();
  loop_.RunPosted();
  orders_.FinishAll(ended);
}

void Node::FollowOwn() {
  Handle(CoordinatorConnected{rendezvous_->incarnation()});
  WithRendezvous([this](Rendezvous& own, absl::Time now) {
    return own.OnNodeConnected(now, self_, Incarnation(incarnation_));
  });
}

void Node::Lead(const Leading& how) {
  role_.AssertHeld();
  leading_ = how;
  RendezvousOptions options = CoordinatorOptions();
  options.floor = how.floor;
  options.expected = how.expected;
  options.expected.insert(self_);
  options.persistent = how.persistent;
  options.keeps_persistent = how.keep != nullptr;
  rendezvous_ = std::make_unique<Rendezvous>(options);
  link_ = nullptr;
  FollowOwn();
}

void Node::StopLeading(CoordinatorLink& link, const absl::Status& why) {
  role_.AssertHeld();
  leading_ = Leading{};
  rendezvous_ = std::make_unique<Rendezvous>(CoordinatorOptions());
  link_ = &link;
  Handle(CoordinatorLost{why});
}

void Node::SetLeader(std::string leader, std::string why_none) {
  leader_ = std::move(leader);
  why_no_leader_ = std::move(why_none);
}

void Node::Turn() {
  DrainEvents();
  if (std::exchange(changed_, false) && watcher_) watcher_();
  if (done_) return;
  loop_.RunOnce(events_.empty() ? NextDeadline() : MonotonicNow());
  DrainEvents();
  const absl::Time now = MonotonicNow();
  workers_.Tick(now);
  clients_.Tick(now);
  if (link_ != nullptr) link_->Tick(now);
  // The node before its coordinator: its report is the sign of life that the coordinator may be
  // waiting for.
  if (now >= control_.NextDeadline()) Handle(Tick{});
  DrainEvents();
  if (now >= rendezvous_->NextDeadline()) {
    WithRendezvous([](Rendezvous& own, absl::Time t) { return own.OnTick(t); });
  }
  AnswerWaiting(now);
  past_.Tick(now);
  CheckIdle(now);
}

absl::Time Node::NextDeadline() const {
  absl::Time next =
      std::min({workers_.NextDeadline(), clients_.NextDeadline(), control_.NextDeadline(),
                rendezvous_->NextDeadline(), past_.NextDeadline()});
  for (const Waiting& waiting : waiting_) next = std::min(next, waiting.until);
  if (link_ != nullptr) next = std::min(next, link_->NextDeadline());
  if (settings().idle_exit > absl::ZeroDuration() && clients_.sessions().empty() && !stopping_) {
    next = std::min(next, idle_since_ + settings().idle_exit);
  }
  return next;
}

void Node::CheckIdle(absl::Time now) {
  if (!clients_.sessions().empty()) idle_since_ = now;
  if (settings().idle_exit <= absl::ZeroDuration() || stopping_ ||
      now < idle_since_ + settings().idle_exit)
    return;
  Log(LogLevel::kInfo, "ending: no session",
      {{"idle_exit", absl::FormatDuration(settings().idle_exit)}});
  BeginShutdown(absl::ZeroDuration(),
                absl::UnavailableError("this epd was idle and is ending; connect again"));
}

void Node::BeginShutdown(absl::Duration deadline, const absl::Status& why) {
  role_.AssertHeld();
  if (stopping_) {
    hurry_ = true;
    done_ = true;
    return;
  }
  stopping_ = true;
  changed_ = true;
  Log(LogLevel::kInfo, "stopping",
      {{"deadline", absl::FormatDuration(deadline)}, {"sessions", clients_.sessions().size()}});
  if (on_stopping_) on_stopping_();
  clients_.StopAccepting(why);
  Handle(ShutdownRequested{MonotonicNow() + deadline});
}

absl::Status Node::CheckRoom(const std::string& group) const {
  std::set<std::string> names;
  for (const LocalGroupStatus& local : control_.Groups()) names.insert(local.view.spec.name);
  for (const MembershipStatus& member : control_.Memberships()) names.insert(member.group_name);
  if (names.count(group) != 0 || names.size() < settings().max_groups) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("group=", group, ": this node has ", names.size(),
                   " groups, its limit (max_groups); close some or raise it"));
}

std::string Node::DescribeGroup(GroupId group) const {
  for (const LocalGroupStatus& local : control_.Groups()) {
    if (local.view.id == group)
      return absl::StrCat("group=", Title(local.view.spec), " epoch=", local.view.epoch.value);
  }
  return absl::StrCat("group_id=", group.value, " epoch=0");
}

}  // namespace epd
