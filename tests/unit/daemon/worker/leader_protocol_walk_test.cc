// Goal: two workers that lead an operation each, with staging for one of them, end both in every order in which messages,
// rows and ranks can come. The walk is exhaustive; it finds the deadlocks that the protocol is there to prevent.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "tests/unit/daemon/worker/engine_parts.h"

namespace epd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kNumWorkers = 2;
constexpr size_t kMaxStates = 100'000;

enum class Sabotage {
  kNone,
  kNobodyAsksForRegions,
  kTicketsAreOnesOwn,
  kGrantsCountTwice,
  kPagesChangeNothing
};

Incarnation IdOf(int worker) { return Incarnation(static_cast<uint64_t>(worker) + 1); }

// The parts of one worker's engine below its steps.
struct Worker {
  explicit Worker(int index) : id(IdOf(index)) {}

  Incarnation id;
  EngineEvent event;
  Staging staging{2 * kPage, kPage};  // A page for each of two ranks.
  OperationTable table{1, 8};
  StreamSites sites;
  AdmissionQueue queue{staging};
  TenantTable tenants{id, 0, staging, queue, event};
  PeerMessenger messenger{id, event};
  OperationFigures figures;
  OperationTraces traces;
  OperationPhases phases{{absl::Seconds(30)},
                         {.table = table,
                          .sites = sites,
                          .queue = queue,
                          .tenants = tenants,
                          .staging = staging,
                          .figures = figures,
                          .traces = traces,
                          .event = event}};
  Failures failures{table, phases, messenger, event};
  RowsAhead ahead{{.table = table,
                   .phases = phases,
                   .staging = staging,
                   .failures = failures,
                   .messenger = messenger,
                   .event = event}};
  LeaderProtocol leader{{.table = table,
                         .phases = phases,
                         .queue = queue,
                         .failures = failures,
                         .messenger = messenger,
                         .ahead = ahead,
                         .event = event}};
  std::deque<PeerMessage> inbox;  // From the other one.
  std::deque<PeerOperation> rows;
  std::deque<OperationId> making;  // Whose pages are not there yet.
  uint64_t num_messages = 0;
};

// Worker w serves rank 0 of group w, which it leads, and rank 1 of the other group.
class World {
 public:
  explicit World(Sabotage sabotage) : sabotage_(sabotage) {
    for (int w = 0; w < kNumWorkers; ++w) workers_[w] = std::make_unique<Worker>(w);
    for (int w = 0; w < kNumWorkers; ++w) {
      workers_[w]->tenants.AddSession(kSession, {});
      for (int group = 0; group < kNumWorkers; ++group) StartTenant(w, group);
      Settle(w);
    }
  }

  // What can happen next, in an order of its own; each one by itself.
  std::vector<std::function<void()>> Choices() {
    std::vector<std::function<void()>> choices;
    for (int w = 0; w < kNumWorkers; ++w) {
      Worker& worker = *workers_[w];
      if (!worker.inbox.empty()) choices.push_back([this, w] { Deliver(w); });
      if (!worker.rows.empty()) choices.push_back([this, w] { Land(w); });
      if (!worker.making.empty()) choices.push_back([this, w] { PagesAreThere(w); });
      for (int group = 0; group < kNumWorkers; ++group) {
        if (!begun_[w][group]) choices.push_back([this, w, group] { Announce(w, group); });
        const Operation* operation = FindOperation(w, group);
        if (operation != nullptr && operation->Any(PartState::kReading)) {
          choices.push_back([this, w, group] { Pull(w, group); });
        }
      }
    }
    return choices;
  }

  bool over() const {
    for (const auto& worker : workers_) {
      if (!worker->table.all().empty()) return false;
      for (const auto& [unused, tenant] : worker->tenants.all()) {
        if (tenant->counters.num_good != 1) return false;
      }
    }
    return true;
  }
  const std::string& violation() const { return violation_; }

  // Equal for states with one future.
  std::string Digest() const {
    std::string digest;
    for (int w = 0; w < kNumWorkers; ++w) {
      const Worker& worker = *workers_[w];
      for (int group = 0; group < kNumWorkers; ++group) {
        absl::StrAppend(&digest, "|", begun_[w][group], " ", TenantOf(w, group).counters.num_good);
        const Operation* operation = FindOperation(w, group);
        if (operation == nullptr) continue;
        const OperationPeers& peers = operation->peers;
        absl::StrAppend(&digest, " ", static_cast<int>(operation->phase), " ",
                        operation->region.has_value(), peers.revoke_asked, peers.reported,
                        peers.wire_open, " ", peers.granted.size(), " ", peers.published.size(),
                        " ", peers.landed.size(), " ", operation->ticket.clock, " ", peers.number);
        for (const Part& part : operation->parts) {
          absl::StrAppend(&digest, ",", static_cast<int>(part.state));
        }
        for (Incarnation granted : peers.granted) absl::StrAppend(&digest, "g", granted.value);
      }
      for (const PeerMessage& message : worker.inbox) {
        absl::StrAppend(&digest, " m", static_cast<int>(message.step), ".", message.group.value,
                        ".", message.number, ".", message.clock, ".", message.ticket.clock);
      }
      for (const PeerOperation& rows : worker.rows) {
        absl::StrAppend(&digest, " r", rows.group.value, ".", rows.number);
      }
      for (OperationId making : worker.making) absl::StrAppend(&digest, " p", making.value);
    }
    return digest;
  }

 private:
  static GroupId GroupOf(int group) { return GroupId(static_cast<uint64_t>(group) + 1); }
  static int LeaderOf(GroupId group) { return static_cast<int>(group.value) - 1; }
  Tenant& TenantOf(int w, int group) const {
    return *workers_[w]->tenants.Find(GroupOf(group), Formation(1));
  }
  Operation* FindOperation(int w, int group) const {
    for (const auto& [unused, operation] : workers_[w]->table.all()) {
      if (operation->tenant == &TenantOf(w, group)) return operation.get();
    }
    return nullptr;
  }

  void StartTenant(int w, int group) {
    TenantStart start = MakeTenant(2, GroupOf(group))->start;
    start.spec.executor = Executor::kClient;
    for (int worker = 0; worker < kNumWorkers; ++worker) {
      start.nodes.push_back(
          {.name = NodeId{absl::StrCat("n", worker)}, .worker = IdOf(worker), .address = "h:1"});
    }
    for (int rank = 0; rank < 2; ++rank) {
      const int server = (group + rank) % kNumWorkers;
      RankHolder& member = start.members[rank];
      member.node = start.nodes[server].name;
      member.arena_index = 0;
      if (server != w) member.session = SessionId();
    }
    ASSERT_TRUE(workers_[w]->tenants.Start(std::move(start)).ok());
  }

  void Announce(int w, int group) {
    begun_[w][group] = true;
    Worker& worker = *workers_[w];
    Tenant& tenant = TenantOf(w, group);
    Operation* operation = worker.table.Find(tenant, MakeKey(0));
    if (operation == nullptr) operation = &worker.phases.Open(tenant, MakeKey(0), "a");
    Part& part = operation->parts[tenant.leads() ? 0 : 1];
    part.state = PartState::kAnnounced;
    part.said.stage_bytes = kPage;
    if (tenant.leads()) {
      AnnouncedAtLeader(worker, *operation);
    } else {
      worker.leader.TellAnnounced(*operation);
    }
    Settle(w);
  }
  static void AnnouncedAtLeader(Worker& worker, Operation& operation) {
    if (!operation.Any(PartState::kAbsent)) worker.leader.AskReserve(operation, kPage);
  }

  void Deliver(int w) {
    Worker& worker = *workers_[w];
    PeerMessage message = worker.inbox.front();
    worker.inbox.pop_front();
    if (sabotage_ == Sabotage::kTicketsAreOnesOwn) message.ticket = {0, worker.id};
    worker.messenger.Hear(message);
    Tenant& tenant = TenantOf(w, LeaderOf(message.group));
    if (sabotage_ == Sabotage::kGrantsCountTwice && message.step == LeaderStep::kGranted) {
      FindOperation(w, LeaderOf(message.group))->peers.granted.insert(worker.id);
    }
    Operation* announced = worker.leader.HandleMessage(tenant, IdOf(1 - w), message);
    if (announced != nullptr) AnnouncedAtLeader(worker, *announced);
    Settle(w);
  }

  void Land(int w) {
    Worker& worker = *workers_[w];
    const PeerOperation name = worker.rows.front();
    worker.rows.pop_front();
    const int group = LeaderOf(name.group);
    Operation* operation = worker.leader.Find(TenantOf(w, group), name.number);
    if (operation == nullptr || !operation->peers.wire_open) {
      violation_ = "rows came that nobody takes";
      return;
    }
    worker.leader.RowsLanded(*operation, Rank(w == group ? 1 : 0));
    Settle(w);
  }

  void Pull(int w, int group) {
    Operation& operation = *FindOperation(w, group);
    for (Part& part : operation.parts) {
      if (part.state == PartState::kReading) part.state = PartState::kPulled;
    }
    workers_[w]->phases.CloseIfOver(operation);
    Settle(w);
  }

  // Grants what can be granted, lets ranks that are admitted publish at once, and takes what is to be sent.
  void Settle(int w) {
    Worker& worker = *workers_[w];
    while (worker.queue.TakeChange()) Pump(worker);
    for (int group = 0; group < kNumWorkers; ++group) {
      Operation* operation = FindOperation(w, group);
      if (operation == nullptr || operation->phase != Phase::kAdmitted) continue;
      const int rank = w == group ? 0 : 1;
      const bool lacks_pages = std::find(worker.making.begin(), worker.making.end(),
                                         operation->id) != worker.making.end();
      if (!operation->region.has_value() || lacks_pages) {
        violation_ = "an operation without a region is admitted";
        return;
      }
      if (operation->parts[rank].state != PartState::kCopying) continue;
      operation->parts[rank].state = PartState::kPublished;
      worker.leader.SendStage(*operation, static_cast<uint32_t>(rank));
      worker.leader.MaybePublished(*operation);
    }
    for (Effect& effect : std::exchange(worker.event.effects, {})) {
      if (auto* send = std::get_if<SendToPeer>(&effect)) {
        workers_[1 - w]->inbox.push_back(std::move(send->message));
      } else if (auto* rows = std::get_if<SendRows>(&effect)) {
        workers_[1 - w]->rows.push_back(rows->operation);
      }
    }
  }
  void Pump(Worker& worker) {
    while (const auto grant = worker.queue.Next()) {
      if (grant->blocked && sabotage_ == Sabotage::kNobodyAsksForRegions) return;
      if (grant->blocked) return worker.leader.AskRevokes(grant->operation->ticket);
      if (grant->commit.bytes > 0) {
        worker.making.push_back(grant->operation->id);
      } else {
        worker.leader.TellGranted(*grant->operation);
      }
    }
  }
  void PagesAreThere(int w) {
    Worker& worker = *workers_[w];
    Operation& operation = *worker.table.Find(worker.making.front());
    worker.making.pop_front();
    worker.queue.PagesCommitted(operation);
    if (sabotage_ == Sabotage::kPagesChangeNothing) worker.queue.TakeChange();
    worker.leader.TellGranted(operation);
    Settle(w);
  }

  const Sabotage sabotage_;
  std::array<std::unique_ptr<Worker>, kNumWorkers> workers_;
  std::array<std::array<bool, kNumWorkers>, kNumWorkers> begun_ = {};
  std::string violation_;
};

struct Walk {
  std::string violation;  // The first one found, if any.
  size_t num_states = 0;
  size_t num_ends = 0;
};

// Every state that can be reached, each once: a path is begun anew for each choice, since states cannot be copied.
Walk WalkAll(Sabotage sabotage) {
  Walk walk;
  std::set<std::string> seen;
  std::vector<std::vector<size_t>> paths = {{}};
  while (!paths.empty() && walk.violation.empty() && seen.size() < kMaxStates) {
    const std::vector<size_t> path = std::move(paths.back());
    paths.pop_back();
    World world(sabotage);
    for (size_t choice : path) world.Choices()[choice]();
    walk.violation = world.violation();
    if (!seen.insert(world.Digest()).second) continue;
    const size_t num_choices = world.Choices().size();
    if (num_choices == 0) {
      ++walk.num_ends;
      if (!world.over()) walk.violation = "the operations wait for each other";
    }
    for (size_t choice = 0; choice < num_choices; ++choice) {
      paths.push_back(path);
      paths.back().push_back(choice);
    }
  }
  walk.num_states = seen.size();
  return walk;
}

TEST(LeaderProtocolWalkTest, BothOperationsEndWellInEveryOrder) {
  const Walk walk = WalkAll(Sabotage::kNone);
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.num_ends, 0u);
  EXPECT_GT(walk.num_states, 400u);
  EXPECT_LT(walk.num_states, kMaxStates) << "the walk is whole";
  RecordProperty("states", static_cast<int>(walk.num_states));
}

TEST(LeaderProtocolWalkTest, IfNobodyGivesARegionBackTheyWaitForEachOther) {
  EXPECT_EQ(WalkAll(Sabotage::kNobodyAsksForRegions).violation,
            "the operations wait for each other");
}

TEST(LeaderProtocolWalkTest, WithTicketsOfTheirOwnTheyWaitForEachOther) {
  EXPECT_EQ(WalkAll(Sabotage::kTicketsAreOnesOwn).violation, "the operations wait for each other");
}

// Who is first asks only those that have told their leader; the others it has to ask again.
TEST(LeaderProtocolWalkTest, IfNobodyAsksAgainOncePagesAreThereTheyWaitForEachOther) {
  EXPECT_EQ(WalkAll(Sabotage::kPagesChangeNothing).violation, "the operations wait for each other");
}

TEST(LeaderProtocolWalkTest, AGrantThatCountsForTheLeaderTooAdmitsWithoutARegion) {
  EXPECT_EQ(WalkAll(Sabotage::kGrantsCountTwice).violation,
            "an operation without a region is admitted");
}

}  // namespace
}  // namespace epd
