#include "tests/unit/daemon/worker/span_simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/span_world.h"

namespace epd {
namespace {

// Room for one operation at a time, or for a few.
constexpr uint64_t kPools[] = {130 * 4096, 240 * 4096};

ProgramId ProgramOf(int name) {
  ProgramId program{};
  program[0] = static_cast<uint8_t>(name + 1);
  return program;
}

}  // namespace

SpanWorld::SpanWorld(uint64_t seed, SpanSabotage sabotage) : random_(seed), sabotage_(sabotage) {
  for (int node = 0; node < kNodes; ++node) nodes_.emplace_back(node, kPools[seed % 2]);
  for (int group = 0; group < kGroups; ++group) {
    for (int rank = 0; rank < kRanks; ++rank) {
      nodes_[NodeOf(group, rank)].exchange.AddSession(SessionOf(group, rank));
    }
    StartFormation(group);
  }
}

SessionId SpanWorld::SessionOf(int group, int rank) const {
  return SessionId(static_cast<uint64_t>(group * kRanks + rank + 1));
}

void SpanWorld::Violate(const std::string& what) {
  if (result_.violation.empty()) {
    result_.violation = absl::StrCat(what, " (event ", events_, ")");
  }
}

int64_t SpanWorld::Logical(int group, int rank, int name, uint64_t raw) const {
  for (const ExecutionBase& base : groups_[group].bases) {
    if (base.rank == Rank(static_cast<uint32_t>(rank)) && base.program == ProgramOf(name)) {
      return static_cast<int64_t>(raw) - static_cast<int64_t>(base.base);
    }
  }
  return static_cast<int64_t>(raw);
}

void SpanWorld::StartFormation(int group) {
  SimGroup& g = groups_[group];
  std::vector<ExecutionCount> counts;
  std::vector<Rank> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    all.push_back(Rank(static_cast<uint32_t>(rank)));
    for (int name = 0; name < kNames; ++name) {
      counts.push_back({all.back(), ProgramOf(name), g.callers[rank][name].begun});
    }
  }
  if (g.formation > 0) g.bases = CutOff(counts, g.bases, all);
  if (sabotage_ == SpanSabotage::kForgetBases) g.bases.clear();
  ++g.formation;
  if (OnDevice(group)) g.epoch = communicator_epoch_;
  g.ended = false;
  g.leader_lost = false;
  ++result_.num_formations;
  for (int node = 0; node < kNodes; ++node) {
    TenantStart start{.group = GroupId(group + 1),
                      .epoch = Epoch(g.epoch),
                      .formation = Formation(g.formation),
                      .spec = {},
                      .members = {},
                      .bases = g.bases,
                      .base_cause = absl::AbortedError("cut"),
                      .nodes = {},
                      .communicator = GroupId(1000)};
    start.spec.name = absl::StrCat("g", group);
    start.spec.num_ranks = kRanks;
    start.spec.num_experts = 4;
    start.spec.max_tokens_per_rank = 16;
    start.spec.recv_capacity_per_rank = 64;
    start.spec.hidden = 8;
    start.spec.top_k = 2;
    const bool by_worker = group % 2 == 1 || OnDevice(group);
    start.spec.executor = by_worker ? Executor::kWorker : Executor::kClient;
    start.spec.backend = OnDevice(group) ? "cuda" : "cpu";
    for (int rank = 0; rank < kRanks; ++rank) {
      const int place = NodeOf(group, rank);
      start.members.push_back({.rank = Rank(static_cast<uint32_t>(rank)),
                               .node = MemberOf(place).node,
                               .session = place == node ? SessionOf(group, rank) : SessionId(),
                               .arena_index = 0,
                               .host = "h",
                               .pid = rank,
                               .client_name = {},
                               .worker = MemberOf(place).name});
    }
    for (int other = 0; other < kNodes; ++other) {
      start.nodes.push_back(
          {MemberOf(other).node, Incarnation(100 + other), "somewhere", MemberOf(other).name});
    }
    if (!nodes_[node].exchange.StartTenant(std::move(start), now_).ok()) {
      Violate("a tenant did not start");
    }
    Perform(node);
  }
}

void SpanWorld::EndFormation(int group, const absl::Status&) { groups_[group].ended = true; }

void SpanWorld::Announce(int group, int rank, int name) {
  Caller& caller = groups_[group].callers[rank][name];
  const int node = NodeOf(group, rank);
  shm::SlotRequest request = {};
  request.step = shm::Step::kAnnounce;
  request.kind = shm::Kind::kPrepare;
  request.group_id = static_cast<uint64_t>(group + 1);
  request.epoch = groups_[group].epoch;
  request.formation = groups_[group].formation;
  request.rank = static_cast<uint32_t>(rank);
  request.program[0] = static_cast<uint8_t>(name + 1);
  request.execution = caller.begun++;
  request.has_name = name == 0 ? 1 : 0;
  request.top_k = 2;
  request.num_tokens = 4;
  request.stage_bytes = 16 + 4096 * (6 + Pick(8));
  const bool worker_executor = group % 2 == 1 || OnDevice(group);
  if (worker_executor) request.plan_bytes = 16;
  if (!quiet_ && Chance(60)) request.error_code = 3;
  if (!quiet_ && Chance(400)) request.alignment = 8;  // Others say 0: they disagree.
  caller.state = Caller::State::kAnnouncing;
  caller.submission = {.session = SessionOf(group, rank), .slot = 0, .claim = next_claim_++};
  nodes_[node].submissions[caller.submission] = {group, {rank, name}};
  nodes_[node].exchange.Take(caller.submission, request, now_);
  Perform(node);
}

void SpanWorld::Publish(int group, int rank, int name) {
  Caller& caller = groups_[group].callers[rank][name];
  const int node = NodeOf(group, rank);
  shm::SlotRequest request = {};
  request.step = shm::Step::kPublish;
  request.group_id = static_cast<uint64_t>(group + 1);
  request.operation.op_id = caller.operation.value;
  request.rank = static_cast<uint32_t>(rank);
  if (!quiet_ && Chance(100)) request.error_code = 3;
  if (request.error_code == 0) {
    operations_[{GroupId(request.group_id), Formation(groups_[group].formation), caller.number}]
        .published.insert(Rank(request.rank));
  }
  caller.state = Caller::State::kPublishing;
  caller.submission.claim = next_claim_++;
  nodes_[node].submissions[caller.submission] = {group, {rank, name}};
  nodes_[node].exchange.Take(caller.submission, request, now_);
  Perform(node);
}

void SpanWorld::Pulled(int group, int rank, int name) {
  Caller& caller = groups_[group].callers[rank][name];
  const int node = NodeOf(group, rank);
  shm::SlotRequest request = {};
  request.step = shm::Step::kPulled;
  request.group_id = static_cast<uint64_t>(group + 1);
  request.operation.op_id = caller.operation.value;
  request.rank = static_cast<uint32_t>(rank);
  caller.state = Caller::State::kPulling;
  caller.submission.claim = next_claim_++;
  nodes_[node].submissions[caller.submission] = {group, {rank, name}};
  nodes_[node].exchange.Take(caller.submission, request, now_);
  Perform(node);
}

bool SpanWorld::AdvanceCaller(int group, int rank, int name) {
  Caller& caller = groups_[group].callers[rank][name];
  switch (caller.state) {
    case Caller::State::kIdle: {
      if (groups_[group].ended) return false;
      // When it is quiet, ranks only catch up with the one that is furthest.
      int64_t furthest = 0;
      const int64_t mine = Logical(group, rank, name, caller.begun);
      for (int other = 0; other < kRanks; ++other) {
        furthest = std::max(furthest,
                            Logical(group, other, name, groups_[group].callers[other][name].begun));
      }
      if (quiet_ ? mine >= furthest : mine > furthest + 1) return false;
      Announce(group, rank, name);
      return true;
    }
    case Caller::State::kCopying:
      Publish(group, rank, name);
      return true;
    case Caller::State::kReading:
      Pulled(group, rank, name);
      return true;
    default:
      return false;
  }
}

bool SpanWorld::DeliverMessage() {
  std::vector<std::pair<int, int>> ready;
  for (const auto& [link, stream] : streams_) {
    if (!stream.empty()) ready.push_back(link);
  }
  if (ready.empty()) return false;
  const auto link = ready[Pick(ready.size())];
  std::deque<PeerMessage>& stream = streams_[link];
  const bool swap = sabotage_ == SpanSabotage::kSwapMessages && Chance(2);
  const auto next = stream.begin() + static_cast<ptrdiff_t>(swap ? Pick(stream.size()) : 0);
  const PeerMessage message = std::move(*next);
  stream.erase(next);
  nodes_[link.second].exchange.Receive(Incarnation(100 + link.first), message, now_);
  Perform(link.second);
  return true;
}

bool SpanWorld::DeliverRows() {
  if (rows_.empty()) return false;
  const size_t index = Pick(rows_.size());
  const RowsInFlight rows = rows_[index];
  rows_.erase(rows_.begin() + static_cast<ptrdiff_t>(index));
  SimNode& node = nodes_[rows.to];
  const auto open = node.open.find(rows.operation);
  if (open == node.open.end()) return true;  // Dropped.
  if (sabotage_ == SpanSabotage::kPhantomRows && Chance(20)) {
    node.exchange.RowsLanded(rows.operation, rows.rank, now_);
    Perform(rows.to);
    return true;
  }
  CheckOverlap(rows.to, rows.operation, open->second);
  operations_[rows.operation].landed.insert({rows.to, rows.rank});
  node.exchange.RowsLanded(rows.operation, rows.rank, now_);
  Perform(rows.to);
  return true;
}

// Streams of a device run in order, and an operation ends when all members take part.
bool SpanWorld::CanEnd(const DeviceMove& move) const {
  if (move.epoch != communicator_epoch_) return true;
  if (move.state != DeviceMove::State::kIssue) return false;
  const bool first =
      std::none_of(device_moves_.begin(), device_moves_.end(), [&](const DeviceMove& other) {
        return other.node == move.node && other.epoch == move.epoch &&
               other.state == DeviceMove::State::kIssue && other.place < move.place;
      });
  return first && places_.at({move.epoch, move.place}).second == kNodes;
}

void SpanWorld::EndDeviceMove(size_t index, const absl::Status& status) {
  const DeviceMove move = device_moves_[index];
  device_moves_.erase(device_moves_.begin() + static_cast<ptrdiff_t>(index));
  const int group = static_cast<int>(move.name.group.value) - 1;
  for (int rank = 0; status.ok() && rank < kRanks; ++rank) {
    if (NodeOf(group, rank) == move.node) continue;
    operations_[move.name].landed.insert({move.node, Rank(static_cast<uint32_t>(rank))});
  }
  nodes_[move.node].exchange.RowsMoved(move.operation, status, now_);
  Perform(move.node);
}

bool SpanWorld::AdvanceDeviceMove() {
  if (device_moves_.empty()) return false;
  const size_t from = Pick(device_moves_.size());
  for (size_t i = 0; i < device_moves_.size(); ++i) {
    const size_t index = (from + i) % device_moves_.size();
    DeviceMove& move = device_moves_[index];
    if (CanEnd(move)) {
      absl::Status status =
          !quiet_ && Chance(100) ? absl::DataLossError("damaged") : absl::OkStatus();
      if (move.epoch != communicator_epoch_) status = absl::AbortedError("a member is lost");
      EndDeviceMove(index, status);
      return true;
    }
    if (move.state != DeviceMove::State::kPreparing) continue;
    if (!quiet_ && Chance(100)) {
      EndDeviceMove(index, absl::DataLossError("its plans differ"));
      return true;
    }
    move.state = DeviceMove::State::kPrepared;
    const OperationId operation = move.operation;
    const int node = move.node;
    nodes_[node].exchange.RowsPrepared(operation, !quiet_ && Chance(100) ? 8 : 7, now_);
    Perform(node);
    return true;
  }
  return false;
}

bool SpanWorld::FinishMove() {
  if (Chance(2) && AdvanceDeviceMove()) return true;
  if (moves_.empty()) return AdvanceDeviceMove();
  const auto next = moves_.begin() + static_cast<ptrdiff_t>(Pick(moves_.size()));
  const MoveUnderWay move = *next;
  moves_.erase(next);
  const bool fails = !quiet_ && Chance(100);
  nodes_[move.node].exchange.RowsMoved(
      move.operation, fails ? absl::DataLossError("damaged") : absl::OkStatus(), now_);
  Perform(move.node);
  return true;
}

// Both directions between two nodes: what is under way is lost, and both are told.
void SpanWorld::LoseStream() {
  const int a = static_cast<int>(Pick(kNodes));
  const int b = static_cast<int>((a + 1 + Pick(kNodes - 1)) % kNodes);
  streams_[{a, b}].clear();
  streams_[{b, a}].clear();
  std::erase_if(rows_, [&](const RowsInFlight& rows) {
    const int group = static_cast<int>(rows.operation.group.value) - 1;
    const int from = NodeOf(group, static_cast<int>(rows.rank.value));
    return (from == a && rows.to == b) || (from == b && rows.to == a);
  });
  for (int group = 0; group < kGroups; ++group) {
    if (NodeOf(group, 0) == a || NodeOf(group, 0) == b) groups_[group].leader_lost = true;
    // All members abort; the tenants form again in the next epoch.
    if (OnDevice(group)) groups_[group].ended = true;
  }
  ++communicator_epoch_;
  for (const auto& [node, peer] : {std::pair{a, b}, std::pair{b, a}}) {
    nodes_[node].exchange.PeerLost(Incarnation(100 + peer), absl::UnavailableError("cable"), now_);
    Perform(node);
  }
}

// The control plane: ends what is broken everywhere, and forms it anew when all calls are over.
void SpanWorld::Settle() {
  for (int group = 0; group < kGroups; ++group) {
    SimGroup& g = groups_[group];
    if (!g.ended) continue;
    bool idle = true;
    for (auto& callers : g.callers) {
      for (const Caller& caller : callers) idle = idle && caller.state == Caller::State::kIdle;
    }
    if (!idle) {
      const int node = static_cast<int>(Pick(kNodes));
      if (!Chance(8)) continue;
      nodes_[node].exchange.EndTenant(GroupId(group + 1), Formation(g.formation),
                                      absl::AbortedError("formed anew"), now_);
      Perform(node);
      continue;
    }
    StartFormation(group);
  }
}

void SpanWorld::Step() {
  const size_t what = Pick(10);
  if (what < 4) {
    AdvanceCaller(static_cast<int>(Pick(kGroups)), static_cast<int>(Pick(kRanks)),
                  static_cast<int>(Pick(kNames)));
  } else if (what < 8) {
    DeliverMessage();
  } else {
    DeliverRows();
    FinishMove();
  }
  Settle();
  if (!quiet_ && Chance(1500)) LoseStream();
  if (Chance(10)) now_ += absl::Milliseconds(1);
}

// Lets everything come to its end, without faults and without deadlines.
void SpanWorld::CheckRest() {
  quiet_ = true;
  for (int idle = 0; idle < 3000 && result_.violation.empty(); ++idle) {
    const int steps = events_;
    for (int group = 0; group < kGroups; ++group) {
      for (int rank = 0; rank < kRanks; ++rank) {
        for (int name = 0; name < kNames; ++name) events_ += AdvanceCaller(group, rank, name);
      }
    }
    while (DeliverMessage()) ++events_;
    while (DeliverRows()) ++events_;
    while (FinishMove()) ++events_;
    Settle();
    if (events_ != steps) idle = 0;
    // A worker waits a little for its leader's word.
    for (int node = 0; idle > 100 && node < kNodes; ++node) {
      now_ += absl::Milliseconds(1);
      nodes_[node].exchange.Tick(now_);
      Perform(node);
    }
  }
  for (int group = 0; group < kGroups; ++group) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int name = 0; name < kNames; ++name) {
        if (groups_[group].callers[rank][name].state == Caller::State::kIdle) continue;
        std::string open;
        for (const SimNode& node : nodes_) {
          for (const auto& line : node.exchange.Snapshot(now_).operations) {
            absl::StrAppend(&open, "\n  group ", line.group.value - 1, " ", line.key, " ",
                            line.phase, " region ", line.region_bytes, " waits for ",
                            DescribeRanks(line.waiting_for));
          }
          open += "\n  --";
        }
        Violate(absl::StrCat("progress: rank ", rank, " of group ", group, " waits in state ",
                             static_cast<int>(groups_[group].callers[rank][name].state), open));
      }
    }
  }
  if (!device_moves_.empty()) Violate("return: a move of a communicator stays open");
  for (const SimNode& node : nodes_) {
    if (!node.open.empty()) Violate("return: a region stays open for rows");
    if (!node.records.empty()) Violate("return: an outcome record stays");
    if (node.exchange.num_open_operations() > 0) Violate("return: an operation stays open");
    for (const StagingPool::SetStatus& set : node.exchange.staging().pool().Sets()) {
      if (set.in_use_bytes > 0) Violate("return: staging stays in use");
    }
  }
}

SpanSimulationResult SpanWorld::Run(int num_events) {
  for (; events_ < num_events && result_.violation.empty(); ++events_) Step();
  if (result_.violation.empty()) CheckRest();
  return result_;
}

SpanSimulationResult SimulateSpan(uint64_t seed, int num_events, SpanSabotage sabotage) {
  return SpanWorld(seed, sabotage).Run(num_events);
}

}  // namespace epd
