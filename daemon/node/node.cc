#include "daemon/node/node.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/node/random_number.h"
#include "daemon/node/workers/worker_options.h"
#include "daemon/observe/log.h"
#include "daemon/observe/user_log.h"
#include "daemon/tls/proof.h"
#include "daemon/tls/wire_secret.h"

namespace epd {
namespace {

// A stopping worker closes its devices; then it is killed.
constexpr absl::Duration kWorkerEnds = absl::Seconds(5);
// Also where the file has been replaced since. What runs epd takes kPageProcessFlag.
constexpr char kOwnProgram[] = "/proc/self/exe";

// How long clients' messages are handled before the loop looks who else is there: somebody who attaches, a worker, epctl.
constexpr absl::Duration kClientsTurn = absl::Milliseconds(2);

// What is shorter is a busy machine's.
constexpr absl::Duration kStandstillSaid = absl::Seconds(1);

// Version of what workers say to each other across nodes; raise it when it changes.
constexpr uint32_t kExchangeVersion = 2;

// NVIDIA's kernel driver; "" without one.
std::string DriverVersion() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

NodeOptions ControlOptions(const NodeIdentity& identity, const Settings& settings) {
  // Alone with its coordinator in one process, nothing can be lost.
  const bool alone = settings.coordinator.empty() && settings.listen.empty();
  return {.node = identity.id,
          .incarnation = Incarnation(identity.incarnation),
          .facts = {.epd_version = identity.version,
                    .exchange = kExchangeVersion,
                    .driver_version = DriverVersion()},
          .report_interval = alone ? absl::InfiniteDuration() : settings.heartbeat};
}

Coordination::Options CoordinationOptions(const NodeIdentity& identity, const Settings& settings) {
  const bool alone = settings.listen.empty();
  return {.self = identity.id,
          .incarnation = Incarnation(identity.incarnation),
          .coordinator = settings.coordinator,
          .node_silence = alone ? absl::InfiniteDuration() : NodeSilence(settings),
          .start_grace = alone ? absl::ZeroDuration() : settings.start_grace};
}

AttachServer::Options ClientOptions(const NodeIdentity& identity, const Settings& settings,
                                    const WorkerTable& workers) {
  return {.node = identity.id.value,
          .version = identity.version,
          .incarnation = identity.incarnation,
          .form = settings.form,
          .max_sessions = [&settings] { return settings.max_sessions; },
          .max_per_uid = [&settings] { return LimitsOf(settings).per_uid; },
          .refusal = [&settings] { return settings.refuse_after_hold_up; },
          .num_slots = [&workers](const WorkerName& worker) { return workers.NumSlots(worker); },
          .listener = {.policy = {geteuid(), settings.attach_uids, settings.attach_gids},
                       .limits =
                           [&settings] {
                             return AttachListener::Limits{
                                 .unattached = settings.max_unattached,
                                 .unattached_per_uid = settings.max_unattached_per_uid,
                                 .deadline = settings.attach_deadline,
                                 .queued_bytes = settings.max_queued_bytes};
                           }},
          .page_program = kOwnProgram};
}

SpecDefaults MakeSpecDefaults(const Settings& settings) {
  SpecDefaults defaults;
  defaults.deadlines = {settings.warn_after, settings.absent, settings.undecided, settings.form};
  if (settings.executor == "client") defaults.executor = Executor::kClient;
  if (settings.executor == "worker") defaults.executor = Executor::kWorker;
  return defaults;
}

std::string DescribeGroup(const NodeControl& control, GroupId group) {
  const GroupView* view = control.FindGroup(group);
  if (view == nullptr) return absl::StrCat("group_id=", group.value, " epoch=0");
  return absl::StrCat("group=", Title(view->spec), " epoch=", view->epoch.value);
}

}  // namespace

NodeLimits LimitsOf(const Settings& settings) {
  return {.max_groups = settings.max_groups,
          .per_uid = {.sessions = settings.max_sessions_per_uid,
                      .groups = settings.max_groups_per_uid,
                      .ranks = settings.max_ranks_per_uid,
                      .table_entries = settings.max_table_entries_per_uid,
                      .slots = settings.max_slots_per_uid}};
}

Node::Node(const ParsedSettings& settings, Options options)
    : parsed_(settings),
      certificates_(options.certificates),
      identity_{
          NodeId{settings.settings.node},
          options.host,
          options.version,
          options.before == nullptr ? RandomNumber() : options.before->incarnation(),
          options.before == nullptr ? MonotonicNow() : GetTime(options.before->started()),
          options.cluster_secret,
          options.before == nullptr ? RandomBytes(kProofBytes) : options.before->wire_secret(),
          options.before == nullptr ? 0 : options.before->num_replacements()},
      requests_([this] { return this->settings().max_orders; }),
      queue_(ControlOptions(identity_, this->settings()), role_,
             [this](const NodeEffect& effect) { effects_.Send(effect); }),
      coordination_(CoordinationOptions(identity_, this->settings()), role_,
                    {[this](NodeEvent event) { Handle(std::move(event)); },
                     [this](const RendezvousEffect& effect) { effects_.Send(effect); },
                     [this] { queue_.MarkChanged(); }}),
      workers_(
          {loop_,
           [this](NodeEvent event) { Handle(std::move(event)); },
           {kCpuWorker, identity_.host, identity_.id.value,
            [this](GroupId group) { return DescribeGroup(control(), group); },
            [this](const v1::WorkerPast& past) { past_.Take(past); },
            [this](const v1::WorkerTrace& trace) { traces_.Take(trace); }, identity_.wire_secret},
           [this](const WorkerName& name) {
             WorkerSupervisor::Options made = MakeWorkerOptions(
                 this->settings(), certificates_.copies(), identity_.incarnation, name);
             made.hello.set_wire_secret(
                 WorkerSecret(identity_.cluster_secret, identity_.wire_secret));
             return made;
           },
           static_cast<uint32_t>(this->settings().slots_per_session)}),
      figures_({[this](absl::Time now) { workers_.AskForFigures(now); },
                [this](absl::Time since) {
                  return workers_.OweFigures(since, FreshFigures::kPatience);
                }}),
      past_([this](const WorkerName& to, const v1::ToWorker& message) {
        workers_.Send(to, message);
      }),
      traces_([this](const WorkerName& to, const v1::ToWorker& message) {
        workers_.Send(to, message);
      }),
      client_gateway_(
          {identity_.host, MakeSpecDefaults(this->settings()),
           [this] { return LimitsOf(this->settings()); },
           [this] { return FindServedGpus(this->settings(), workers_); },
           [this](SessionId session) { return control().HoldsStaging(session); }},
          [this](NodeEvent event) { Handle(std::move(event)); }, workers_),
      clients_(ClientOptions(identity_, this->settings(), workers_), loop_, client_gateway_),
      effects_(Targets()),
      lifetime_(this->settings().idle_exit, MonotonicNow()),
      replacement_(loop_) {
  workers_.SetServer(&clients_);
  client_gateway_.SetServer(&clients_);
}

Node::~Node() = default;

EffectSender::Targets Node::Targets() {
  return {identity_.id,
          identity_.cluster_secret,
          clients_,
          workers_,
          requests_,
          [this](NodeEvent event) { Handle(std::move(event)); },
          [this](const NodeReport& report) { coordination_.Report(report); },
          [this](const ClusterView& view) { coordination_.Show(view); },
          [this] { lifetime_.Finish(); }};
}

absl::Status Node::AddWorkers() {
  absl::Status added = workers_.Add(kCpuWorker);
  for (const WorkerName& name : FindServedGpus(settings(), workers_).workers) {
    if (added.ok()) added = workers_.Add(name);
  }
  return added;
}

absl::Status Node::Listen(UniqueFd listener) { return clients_.Start(std::move(listener)); }

void Node::WithFreshFigures(std::function<void()> then) {
  role_.AssertHeld();
  figures_.Then(MonotonicNow(), std::move(then));
}

void Node::AskForPast(const std::vector<GroupId>& groups, uint32_t max_of_rank,
                      PastQuestions::Done done) {
  role_.AssertHeld();
  std::vector<PastQuestions::Asked> served;
  for (const LocalGroupStatus& local : control().Groups()) {
    if (!absl::c_linear_search(groups, local.view.id)) continue;
    for (const WorkerName& name : local.workers) {
      const WorkerEntry* entry = workers_.Find(name);
      if (entry == nullptr || !entry->supervisor.running()) continue;
      served.push_back({local.view.id, name, [id = local.view.id, max_of_rank](uint64_t request) {
                          v1::ToWorker message;
                          message.mutable_get_past()->set_request_id(request);
                          message.mutable_get_past()->set_group_id(id.value);
                          message.mutable_get_past()->set_max_operations(max_of_rank);
                          return message;
                        }});
    }
  }
  past_.Ask(served, MonotonicNow(), std::move(done));
}

void Node::AskForTraces(const std::map<WorkerName, v1::GetTrace>& questions,
                        TraceQuestions::Done done) {
  role_.AssertHeld();
  std::vector<TraceQuestions::Asked> asked;
  for (const auto& [name, question] : questions) {
    const WorkerEntry* entry = workers_.Find(name);
    if (entry == nullptr || !entry->supervisor.running()) continue;
    asked.push_back({name, name, [made = question](uint64_t request) {
                       v1::ToWorker message;
                       *message.mutable_get_trace() = made;
                       message.mutable_get_trace()->set_request_id(request);
                       return message;
                     }});
  }
  traces_.Ask(asked, MonotonicNow(), std::move(done));
}

void Node::Run(std::function<void()> on_stopping) {
  role_.Take();
  on_stopping_ = std::move(on_stopping);
  coordination_.Start();
  while (!lifetime_.ended()) Turn();
  const absl::Status ended = absl::UnavailableError("epd ends");
  while (!clients_.sessions().empty()) clients_.End(clients_.sessions().begin()->first, ended);
  figures_.FinishAll();
  workers_.Stop(MonotonicNow() + (lifetime_.hurried() ? absl::ZeroDuration() : kWorkerEnds));
  // Whoever asked meanwhile gets an answer: gRPC waits for every call that it has handed out.
  loop_.ClosePosts();
  loop_.RunPosted();
  requests_.FinishAll(ended);
}

void Node::Turn() {
  queue_.Drain();
  queue_.ShowChanges();
  if (lifetime_.ended()) return;
  const bool waits = queue_.empty() && !clients_.has_messages();
  loop_.RunOnce(waits ? NextDeadline() : MonotonicNow());
  queue_.Drain();
  HandleClients();
  const absl::Time now = loop_.Look();
  SayStandstill();
  if (workers_.Tick(now)) queue_.MarkChanged();
  clients_.Tick(now);
  coordination_.TickLink(now);
  // The node before its coordinator: its report is the sign of life that the coordinator may be
  // waiting for.
  if (now >= control().NextDeadline()) Handle(Tick{});
  queue_.Drain();
  coordination_.TickOwn(now);
  figures_.Tick(now);
  past_.Tick(now);
  traces_.Tick(now);
  replacement_.Tick(now);
  LogWhatWasLeftOut();
  CheckIdle(now);
  if (!replacement_.IsDue(now)) return;
  loop_.RunPosted();
  queue_.Drain();
  if (!lifetime_.ended()) replacement_.Run();
}

void Node::SayStandstill() {
  const absl::Duration lost = loop_.TakeStandstill();
  if (lost < kStandstillSaid) return;
  Log(LogLevel::kWarn, "epd did not run",
      {{"for", absl::FormatDuration(lost)},
       {"why", "it was stopped or frozen, or the machine was suspended or too busy"},
       {"deadlines", "wait as much longer"}});
}

// What a message costs is mostly what control does with it, so that is part of the turn.
void Node::HandleClients() {
  const absl::Time end = MonotonicNow() + kClientsTurn;
  clients_.HandleMessages([&] {
    queue_.HandleEvents();
    return MonotonicNow() < end;
  });
  queue_.Drain();
}

absl::Time Node::NextDeadline() const {
  return std::min({workers_.NextDeadline(), clients_.NextDeadline(), control().NextDeadline(),
                   coordination_.NextDeadline(), figures_.NextDeadline(), past_.NextDeadline(),
                   traces_.NextDeadline(), replacement_.NextDeadline(),
                   lifetime_.NextDeadline(!clients_.sessions().empty())});
}

void Node::CheckIdle(absl::Time now) {
  if (!lifetime_.IsIdle(now, !clients_.sessions().empty())) return;
  Log(LogLevel::kInfo, "ending: no session",
      {{"idle_exit", absl::FormatDuration(settings().idle_exit)}});
  BeginShutdown(absl::ZeroDuration(),
                absl::UnavailableError("this epd was idle and is ending; connect again"));
}

void Node::BeginShutdown(absl::Duration deadline, const absl::Status& why) {
  role_.AssertHeld();
  if (!lifetime_.BeginEnd()) return;
  queue_.MarkChanged();
  Log(LogLevel::kInfo, "stopping",
      {{"deadline", absl::FormatDuration(deadline)}, {"sessions", clients_.sessions().size()}});
  if (on_stopping_) on_stopping_();
  clients_.StopAccepting(why);
  Handle(ShutdownRequested{MonotonicNow() + deadline});
}

}  // namespace epd
