// Clients: processes that join, run, fail, leave and die.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace epd::sim {
namespace {

constexpr uint32_t kNumRanks[] = {2, 3, 1};
constexpr uint32_t kNumRanksOfWhole[] = {2, 3, 4, 6, 1, 8};
constexpr size_t kMaxClients = 60;

// The ranks of the second group are at two GPUs, also where they are on one node.
WorkerName WorkerOf(int which, Rank rank) {
  if (which % 3 == 0) return kCpuWorker;
  return WorkerName{which % 3 == 1 ? static_cast<int32_t>(rank.value % 2) : 0};
}

}  // namespace

int World::NumNames() const {
  if (!options_.whole) return static_cast<int>(std::size(kNumRanks));
  return std::max(4, static_cast<int>(nodes_.size()) / 2);
}

uint32_t World::NumRanks(int which) const {
  if (!options_.whole) return kNumRanks[which];
  return kNumRanksOfWhole[static_cast<size_t>(which) % std::size(kNumRanksOfWhole)];
}

GroupSpec World::SpecOf(int which, int instance, int tenant) {
  GroupSpec spec;
  spec.name = absl::StrCat("group", which);
  spec.instance = absl::StrCat("run", instance);
  if (tenant > 0) spec.tenant = absl::StrCat("tenant", tenant);
  spec.num_ranks = NumRanks(which);
  spec.num_experts = 2 * spec.num_ranks;
  spec.max_tokens_per_rank = 8;
  spec.recv_capacity_per_rank = 64;
  spec.hidden = 16;
  spec.max_token_dtype = Dtype::kFloat32;
  spec.backend = "cpu";
  spec.deadlines.form = absl::Seconds(20);
  if (data_ == nullptr) return spec;
  spec.deadlines.absent = absl::Seconds(15);
  spec.deadlines.undecided = absl::Seconds(10);
  spec.executor = which % 2 == 0 ? Executor::kClient : Executor::kWorker;
  return spec;
}

Who World::WhoOf(size_t c) const {
  return {nodes_[clients_[c].node].name, clients_[c].node_incarnation, clients_[c].session.value};
}

bool World::Lives(size_t c) const {
  const Client& client = clients_[c];
  const Node& node = nodes_[client.node];
  return client.alive && node.control != nullptr && node.incarnation == client.node_incarnation;
}

void World::NewClient() {
  const std::optional<size_t> c = Attach(rng_.Below(nodes_.size()));
  if (c.has_value()) JoinSomething(*c);
}

std::optional<size_t> World::Attach(size_t i) {
  if (nodes_[i].control == nullptr) return std::nullopt;
  if (!options_.whole && clients_.size() >= kMaxClients) return std::nullopt;
  Client client;
  client.node = i;
  client.node_incarnation = nodes_[i].incarnation;
  client.session = SessionId{next_session_++};
  client.pid = static_cast<int32_t>(1000 + client.session.value);
  client.last_sent = client.last_received = now_;
  clients_.push_back(client);
  const size_t c = clients_.size() - 1;
  ToNode(c, SessionAttached{client.session, client.pid, 0, nodes_[i].name, "sim"});
  return c;
}

// The socket keeps the order; a dead node reads nothing.
void World::ToNode(size_t c, const NodeEvent& event) {
  Client& client = clients_[c];
  client.last_sent = std::max(client.last_sent, now_ + Delay(50));
  const size_t i = client.node;
  const uint64_t incarnation = client.node_incarnation;
  At(client.last_sent - now_, [this, i, incarnation, event] {
    if (nodes_[i].control == nullptr || nodes_[i].incarnation != incarnation) return;
    if (const auto* join = std::get_if<JoinRequested>(&event)) {
      invariants_.SawJoinAsked({nodes_[i].name, incarnation, join->session.value}, join->request);
    }
    if (const auto* gone = std::get_if<SessionGone>(&event)) {
      invariants_.SawSessionEnd({nodes_[i].name, incarnation, gone->session.value});
    }
    if (data_ != nullptr) SawSession(i, event);
    Give(i, event);
  });
}

void World::FromNode(size_t i, SessionId session, std::function<void(size_t)> what) {
  for (size_t c = 0; c < clients_.size(); ++c) {
    Client& client = clients_[c];
    if (client.node != i || client.session != session || !Lives(c)) continue;
    client.last_received = std::max(client.last_received, now_ + Delay(50));
    At(client.last_received - now_, [this, c, what] {
      if (Lives(c)) what(c);
    });
  }
}

std::set<Rank> World::TakenRanks(const std::string& title) const {
  std::set<Rank> taken;
  for (size_t other = 0; other < clients_.size(); ++other) {
    if (!Lives(other)) continue;
    for (const auto& [group, part] : clients_[other].parts) {
      if (part.name == title) taken.insert(part.ranks.begin(), part.ranks.end());
    }
    for (const auto& [request, wish] : clients_[other].joining) {
      if (wish.first == title) taken.insert(wish.second.begin(), wish.second.end());
    }
  }
  return taken;
}

void World::JoinSomething(size_t c) {
  const int which = static_cast<int>(rng_.Below(static_cast<uint64_t>(NumNames())));
  GroupSpec spec = SpecOf(which, rng_.Chance(8) ? 2 : 1, rng_.Chance(40) ? 1 : 0);
  if (rng_.Chance(4)) spec.hidden = 32;
  if (rng_.Chance(2)) spec.num_ranks = 0;
  // Mostly ranks that nobody holds, as a launcher would give them; sometimes any.
  const std::set<Rank> taken = TakenRanks(Title(spec));
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < NumRanks(which); ++r) {
    if (taken.count(Rank{r}) == 0) ranks.push_back(Rank{r});
  }
  if (ranks.empty() || rng_.Chance(5))
    ranks = {Rank{static_cast<uint32_t>(rng_.Below(NumRanks(which)))}};
  if (ranks.size() > 1 && rng_.Chance(70)) ranks = {ranks[rng_.Below(ranks.size())]};
  Join(c, which, std::move(spec), std::move(ranks));
}

void World::Join(size_t c, int which, GroupSpec spec, std::vector<Rank> ranks) {
  Client& client = clients_[c];
  const RequestId request{client.next_request++};
  client.joining[request] = {Title(spec), ranks};
  invariants_.SawWish(client.session, spec);
  if (options_.bug == Bug::kMixTenants && rng_.Chance(20))
    spec.tenant = spec.tenant.empty() ? "tenant1" : "";
  Log(absl::StrCat("session ", client.session.value, " on ", nodes_[client.node].name, " joins ",
                   Title(spec), " ranks ", DescribeRanks(ranks)));
  const absl::Time deadline = NodeNow(client.node) + absl::Seconds(3) + Delay(17000);
  client.join_deadlines[request] = deadline;
  std::vector<WorkerName> workers;
  for (const Rank rank : ranks) {
    workers.push_back(WorkerOf(which, rank));
    invariants_.SawWorkerOf(spec.name, rank, workers.back());
  }
  ToNode(c, JoinRequested{client.session, request, spec, ranks, client.epochs_seen[spec.name],
                          deadline, GroupId{Fresh()}, workers});
}

void World::Leave(size_t c) {
  Client& client = clients_[c];
  if (client.parts.empty()) return;
  const GroupId group = client.parts.begin()->first;
  Log(absl::StrCat("session ", client.session.value, " leaves"));
  if (data_ != nullptr) TouchClient(c);
  client.parts.erase(group);
  client.left_at = now_;
  ToNode(c, LeaveRequested{client.session, RequestId{client.next_request++}, group});
}

// As a client that finalizes its last group: it unmaps their staging, and has no use for its session.
void World::LeaveForGood(size_t c) {
  Client& client = clients_[c];
  if (!client.joining.empty()) return;
  while (!client.parts.empty()) Leave(c);
  Log(absl::StrCat("session ", client.session.value, " ends"));
  data_->Abandon(client.session);
  client.alive = false;
  client.left_for_good = true;
  ToNode(c, SessionGone{client.session, absl::UnavailableError("socket closed")});
}

void World::Crash(size_t c) {
  Client& client = clients_[c];
  if (!client.alive) return;
  Log(absl::StrCat("session ", client.session.value, " dies"));
  if (data_ != nullptr) {
    TouchClient(c);
    data_->Abandon(client.session);
  }
  client.alive = false;
  if (options_.bug == Bug::kDeadKeepsLease) return;
  ToNode(c, SessionGone{client.session, absl::UnavailableError("socket closed")});
}

// A call: runs, or fails at once, or waits.
void World::Operate(size_t c) {
  Client& client = clients_[c];
  if (client.parts.empty()) return;
  auto it = client.parts.begin();
  std::advance(it, rng_.Below(client.parts.size()));
  Part& part = it->second;
  if (data_ != nullptr) return MoreCalls(it->first, part.formation, 3 + rng_.Below(10));
  if (!part.serving && part.wait) return;
  ProgramId program{};
  program[0] = static_cast<uint8_t>(rng_.Below(2));
  for (const Rank rank : part.ranks) part.begun[{rank, program}] += rng_.Below(3);
  part.fresh = false;
  if (!part.serving && part.drained) SendDrained(c, it->first);
}

void World::SendDrained(size_t c, GroupId group) {
  const Client& client = clients_[c];
  const Part& part = client.parts.at(group);
  SessionDrained drained{client.session, group, part.formation, {}};
  for (const auto& [key, begun] : part.begun) {
    const bool failed = data_ != nullptr ? part.failed.contains(key.first) : begun % 2 == 1;
    drained.counts.push_back({key.first, key.second, begun, failed});
  }
  invariants_.SawDrained(client.session, group, drained.counts);
  ToNode(c, drained);
}

void World::OnJoined(size_t c, const ReplyJoined& joined, const std::vector<Rank>& ranks) {
  Client& client = clients_[c];
  client.joining.erase(joined.request);
  if (client.parts.count(joined.group) == 0 && !joined.request)
    return;  // It has left in the meantime.
  Part& part = client.parts[joined.group];
  part.name = Title(joined.spec);
  part.group_name = joined.spec.name;
  part.coordinator = joined.coordinator;
  part.formation = joined.formation;
  part.epoch = joined.epoch;
  part.ranks = ranks;
  part.serving = true;
  part.drained = false;
  part.fresh = true;
  Epoch& seen = client.epochs_seen[joined.spec.name];
  seen = std::max(seen, joined.epoch);
  for (const Rank rank : ranks) {
    invariants_.SawHeld(joined.coordinator, joined.group, joined.formation, rank, WhoOf(c));
    if (options_.bug == Bug::kGrantTwice && clients_.size() > 1) {
      invariants_.SawHeld(joined.coordinator, joined.group, joined.formation, rank,
                          WhoOf((c + 1) % clients_.size()));
    }
    if (data_ == nullptr) continue;
    part.loops[rank].num_cut = part.failed.contains(rank) ? 1 : 0;
  }
  if (data_ != nullptr) BeginTurns(c, joined.group);
}

void World::OnReform(size_t c, const NotifyReform& reform) {
  const auto it = clients_[c].parts.find(reform.group);
  if (it == clients_[c].parts.end()) return;
  Part& part = it->second;
  part.wait = reform.wait;
  if (data_ != nullptr && part.formation == reform.formation) {
    part.serving = false;
    MaybeDrain(c, reform.group);
    return BeginTurns(c, reform.group);
  }
  if (!part.serving || part.formation != reform.formation) return;
  part.serving = false;
  At(Delay(rng_.Chance(5) ? 9000 : 500),
     [this, c, group = reform.group, formation = reform.formation] {
       if (!Lives(c)) return;
       const auto found = clients_[c].parts.find(group);
       if (found == clients_[c].parts.end() || found->second.serving ||
           found->second.formation != formation)
         return;
       found->second.drained = true;
       SendDrained(c, group);
     });
}

void World::Order(size_t i) {
  if (nodes_[i].control == nullptr) return;
  const RequestId request{next_order_++};
  const int which = static_cast<int>(rng_.Below(static_cast<uint64_t>(NumNames())));
  const GroupSpec spec = SpecOf(which, 1, rng_.Chance(30) ? 1 : 0);
  const absl::Time deadline = NodeNow(i) + Delay(8000);
  Touch(spec.name);
  invariants_.SawOrderAsked(nodes_[i].name, nodes_[i].incarnation, request);
  switch (rng_.Below(4)) {
    case 0:
      Give(i, OrderRequested{{.request = request,
                              .kind = OrderKind::kCreate,
                              .spec = spec,
                              .proposed = GroupId{Fresh()}},
                             deadline});
      return;
    case 1:
      Give(i, OrderRequested{{.request = request, .kind = OrderKind::kClose, .name = spec.name},
                             deadline});
      return;
    default:
      Give(i, OrderRequested{{.request = request, .kind = OrderKind::kDrain, .name = spec.name},
                             deadline});
      return;
  }
}

}  // namespace epd::sim
