#include "tests/unit/daemon/worker/stream_span_world.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"

namespace epd::stream_span {
namespace {

constexpr GroupId kGroup = GroupId(7);
using Code = absl::StatusCode;

bool Typed(Code code) {
  return code == Code::kInvalidArgument || code == Code::kResourceExhausted ||
         code == Code::kDataLoss;
}

}  // namespace

World::World(uint64_t seed, Sabotage sabotage) : random_(seed), seed_(seed), sabotage_(sabotage) {
  for (int node = 0; node < kNodes; ++node) {
    nodes_.emplace_back(ExchangeOptions{.staging_bytes = uint64_t{1} << 20,
                                        .device_staging_bytes = uint64_t{256} << 20,
                                        .self = Incarnation(100 + node)});
  }
  for (uint32_t r = 0; r < kRanks; ++r) nodes_[kNodeOf[r]].AddSession(SessionId(r + 1));
  StartFormation();
}

void World::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

bool World::Overflows(uint32_t rank, uint64_t cycle) const {
  return (cycle * 7 + rank * 3 + seed_) % 43 == 0;
}

bool World::HasPlan(uint32_t rank, uint64_t cycle) const {
  return (cycle * 5 + rank * 2 + seed_) % 53 != 0;
}

TenantStart World::StartOf(int node) const {
  TenantStart start{.group = kGroup,
                    .epoch = Epoch(formation_),
                    .formation = Formation(formation_),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = absl::AbortedError("cut"),
                    .nodes = {},
                    .communicator = GroupId(1000)};
  start.spec.name = "g";
  start.spec.num_ranks = kRanks;
  start.spec.num_experts = 4;
  start.spec.max_tokens_per_rank = 16;
  start.spec.recv_capacity_per_rank = kCapacity;
  start.spec.hidden = 8;
  start.spec.top_k = 2;
  start.spec.executor = Executor::kWorker;
  start.spec.backend = "cuda";
  for (uint32_t r = 0; r < kRanks; ++r) {
    start.members.push_back({.rank = Rank(r),
                             .node = NodeId{absl::StrCat("n", kNodeOf[r])},
                             .session = kNodeOf[r] == node ? SessionId(r + 1) : SessionId(),
                             .arena_index = 0,
                             .host = "h",
                             .pid = 1,
                             .client_name = {}});
  }
  for (int other = 0; other < kNodes; ++other) {
    start.nodes.push_back(
        {NodeId{absl::StrCat("n", other)}, Incarnation(100 + other), "somewhere"});
  }
  return start;
}

void World::StartFormation() {
  ++formation_;
  ended_ = false;
  for (int node = 0; node < kNodes; ++node) {
    if (!nodes_[node].StartTenant(StartOf(node), now_).ok()) Violate("a tenant did not start");
    Perform(node);
  }
}

void World::Take(uint32_t rank, shm::Step step) {
  Stream& stream = streams_[rank];
  shm::SlotRequest request = {};
  request.step = step;
  request.kind = shm::Kind::kDispatch;
  request.group_id = kGroup.value;
  request.epoch = stream.entered;
  request.formation = stream.entered;
  request.rank = rank;
  request.program[0] = 1;
  request.ordinal = stream.site;
  request.dtype = 1;
  request.top_k = 2;
  request.row_bytes = 32;
  request.num_tokens = 4;
  request.recv_capacity = kCapacity;
  request.stage_bytes = 3000;
  request.out_bytes = 2000;
  request.plan_bytes = 512;
  request.plan_id = HasPlan(rank, stream.cycle) ? 1 : 0;
  if (step == shm::Step::kStreamAnnounce) {
    request.announce.demand = Overflows(rank, stream.cycle) ? kCapacity + 1 : kCapacity;
  } else {
    request.stream.announce_slot = stream.site * 3;
  }
  const uint32_t slot = stream.site * 3 + (static_cast<uint32_t>(step) - 5);
  stream.submission = {.session = SessionId(rank + 1), .slot = slot, .claim = ++claim_};
  nodes_[kNodeOf[rank]].Take(stream.submission, request, now_);
  Perform(kNodeOf[rank]);
}

// All that touch a node's eager buffers do so for one operation.
void World::CheckStreamRegions() {
  for (uint32_t a = 0; a < kRanks; ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      const bool both = streams_[a].touching && streams_[b].touching && kNodeOf[a] == kNodeOf[b];
      if (both && streams_[a].operation != streams_[b].operation) {
        Violate("two operations were in the stream regions of one node");
      }
    }
  }
}

void World::NoteEnd(uint32_t rank, Code code) {
  Stream& stream = streams_[rank];
  ends_[stream.spoke_for][rank].push_back({stream.cycle, code});
  if (code == Code::kOk) ++num_good_;
  if (Typed(code)) ++num_refused_;
  if (code == Code::kAborted && !ended_) ++num_skipped_;
}

void World::StreamStep(uint32_t rank) {
  Stream& stream = streams_[rank];
  const auto answered = answers_.find(stream.submission);
  switch (stream.pc) {
    case Pc::kAnnounce:
      stream.spoke_for = stream.entered;
      stream.pc = Pc::kWaitAnnounce;
      return Take(rank, shm::Step::kStreamAnnounce);
    case Pc::kWaitAnnounce:
      if (answered == answers_.end()) return;
      stream.pc = Pc::kPublish;
      stream.operation = {};
      if (!answered->second.status.ok()) return;
      stream.operation = {stream.spoke_for, answered->second.plan_id};
      met_[stream.operation][rank] = stream.cycle;
      stream.touching = true;
      return CheckStreamRegions();
    case Pc::kPublish:
      stream.touching = false;
      stream.pc = Pc::kWaitPublish;
      if (stream.operation.second != 0) published_[stream.operation][rank] = true;
      return Take(rank, shm::Step::kStreamPublish);
    case Pc::kWaitPublish:
      if (answered == answers_.end()) return;
      stream.pc = Pc::kPulled;
      NoteEnd(rank, answered->second.status.code());
      if (!answered->second.status.ok()) return;
      if (published_[stream.operation].size() < kRanks) Violate("good before all had published");
      stream.touching = true;
      return CheckStreamRegions();
    case Pc::kPulled:
      stream.touching = false;
      stream.pc = Pc::kAnnounce;
      Take(rank, shm::Step::kStreamPulled);
      stream.site = (stream.site + 1) % kSites;
      ++stream.cycle;
      return;
  }
}

// The ends of one use on all ranks of which they are known.
void World::CheckSubmission(const std::map<uint32_t, End>& ends) {
  std::optional<Code> code;
  bool over = false;
  bool planless = false;
  for (const auto& [rank, end] : ends) {
    over |= Overflows(rank, end.cycle);
    planless |= !HasPlan(rank, end.cycle);
    if (end.code != Code::kOk && !Typed(end.code)) continue;
    if (code.value_or(end.code) != end.code) Violate("the ranks were told different things");
    code = end.code;
  }
  if (!code.has_value() || ends.size() < kRanks) return;
  if (*code == Code::kOk && (over || planless)) Violate("a use was good that one rank had wrong");
  if (*code == Code::kResourceExhausted && !over) Violate("an overflow of nobody's");
  if (*code == Code::kInvalidArgument && !planless) Violate("an error of nobody's");
}

// Since the ranks met, the n-th use of one is the n-th use of every other.
void World::CheckEnds() {
  std::map<uint64_t, std::map<uint32_t, uint64_t>> first;  // Cycles of the first operation.
  for (const auto& [operation, cycles] : met_) {
    if (cycles.size() < kRanks) continue;
    const auto& base = first.emplace(operation.first, cycles).first->second;
    for (const auto& [rank, cycle] : cycles) {
      if (cycle - base.at(rank) != cycles.at(0) - base.at(0)) Violate("uses of two steps met");
      if (cycle % kSites != cycles.at(0) % kSites) Violate("two sites met");
    }
  }
  for (const auto& [formation, cycles] : first) {
    std::map<uint64_t, std::map<uint32_t, End>> submissions;
    for (const auto& [rank, ends] : ends_[formation]) {
      for (const End& end : ends) {
        if (end.cycle >= cycles.at(rank)) submissions[end.cycle - cycles.at(rank)][rank] = end;
      }
    }
    for (const auto& [unused, ends] : submissions) CheckSubmission(ends);
  }
}

bool World::Deliver() {
  std::vector<std::pair<int, int>> ready;
  for (const auto& [wire, messages] : wires_) {
    if (!messages.empty()) ready.push_back(wire);
  }
  if (ready.empty()) return false;
  const auto wire = ready[Roll(ready.size())];
  const PeerMessage message = std::move(wires_[wire].front());
  wires_[wire].pop_front();
  nodes_[wire.second].Receive(Incarnation(100 + wire.first), message, now_);
  Perform(wire.second);
  return true;
}

void World::EndMove(size_t index, const absl::Status& status) {
  const Move move = moves_[index];
  moves_.erase(moves_.begin() + static_cast<ptrdiff_t>(index));
  nodes_[move.node].RowsMoved(move.operation, status, now_);
  Perform(move.node);
}

bool World::AdvanceMove() {
  if (moves_.empty()) return false;
  const size_t index = Roll(moves_.size());
  Move& move = moves_[index];
  if (move.formation != formation_ || ended_) {
    EndMove(index, absl::AbortedError("a member is lost"));
  } else if (!move.prepared) {
    move.prepared = true;
    const OperationId operation = move.operation;
    const int node = move.node;
    nodes_[node].RowsPrepared(operation, 7, now_);
    Perform(node);
  } else if (move.place.has_value() && turns_[{move.formation, *move.place}] == kNodes) {
    const bool damaged = !quiet_ && Roll(200) == 0;
    EndMove(index, damaged ? absl::DataLossError("damaged") : absl::OkStatus());
  } else {
    return false;
  }
  return true;
}

void World::LoseStream() {
  const int a = static_cast<int>(Roll(kNodes));
  const int b = (a + 1) % kNodes;
  wires_[{a, b}].clear();
  wires_[{b, a}].clear();
  ended_ = true;
  for (const auto& [node, peer] : {std::pair{a, b}, std::pair{b, a}}) {
    nodes_[node].PeerLost(Incarnation(100 + peer), absl::UnavailableError("cable"), now_);
    Perform(node);
  }
}

// The control plane, and the clients that map the staging of the next formation once nothing touches the last.
void World::Settle() {
  if (ended_ && Roll(20) == 0) {
    for (int node = 0; node < kNodes; ++node) {
      nodes_[node].EndTenant(kGroup, Formation(formation_), absl::AbortedError("formed anew"),
                             now_);
      Perform(node);
    }
    StartFormation();
  }
  for (Stream& stream : streams_) {
    const bool still = stream.pc == Pc::kAnnounce || stream.pc == Pc::kWaitAnnounce;
    if (still && !stream.touching && stream.entered != formation_ && Roll(5) == 0) {
      stream.entered = formation_;
    }
  }
}

void World::FairRound() {
  for (uint32_t r = 0; r < kRanks; ++r) StreamStep(r);
  while (Deliver()) {
  }
  while (AdvanceMove()) {
  }
  Settle();
  now_ += absl::Milliseconds(20);
  for (int node = 0; node < kNodes; ++node) {
    nodes_[node].Tick(now_);
    Perform(node);
  }
}

std::string World::Run(int num_events) {
  for (int i = 0; i < num_events && violation_.empty(); ++i) {
    const uint64_t what = Roll(10);
    if (what < 5) StreamStep(static_cast<uint32_t>(Roll(kRanks)));
    if (what >= 5 && what < 9) Deliver();
    if (what == 9) AdvanceMove();
    Settle();
    if (Roll(1200) == 0) LoseStream();
  }
  quiet_ = true;
  const uint64_t good = num_good_;
  for (int i = 0; i < 1500 && violation_.empty(); ++i) FairRound();
  if (violation_.empty() && num_good_ < good + 20 * kRanks) Violate("the streams are stuck");
  if (violation_.empty()) CheckEnds();
  return violation_;
}

void World::Perform(int node) {
  for (Effects effects = nodes_[node].TakeEffects(); !effects.empty();
       effects = nodes_[node].TakeEffects()) {
    for (const Effect& effect : effects) {
      std::visit([this, node](const auto& one) { Do(node, one); }, effect);
    }
  }
}

void World::Do(int, const AnswerSubmission& e) {
  if (!answers_.emplace(e.submission, e).second) Violate("a use was answered twice");
}

void World::Do(int node, const SendToPeer& e) {
  std::deque<PeerMessage>& wire = wires_[{node, static_cast<int>(e.peer.value) - 100}];
  if (sabotage_ == Sabotage::kLoseMessage && Roll(50) == 0) return;
  wire.push_back(e.message);
  PeerMessage& message = wire.back();
  if (sabotage_ == Sabotage::kForgetApart) message.unsynchronised = false;
  if (sabotage_ == Sabotage::kForgetCause && message.step == LeaderStep::kAnnounce)
    message.cause = {};
  for (auto& [unused, said] : message.said) {
    if (sabotage_ == Sabotage::kForgetStream) said.from_stream = false;
    if (sabotage_ == Sabotage::kForgetDemand) said.demand = 0;
  }
}

void World::Do(int node, const MoveRows& e) {
  for (uint32_t r = 0; r < kRanks; ++r) {
    const MovePart& part = e.job.parts[r];
    if (part.local != (kNodeOf[r] == node)) Violate("rows of another node's rank are moved");
    if (part.stage_offset != 0) Violate("rows are moved that are in no stream region");
  }
  moves_.push_back({.node = node,
                    .operation = e.operation,
                    .formation = e.formation.value,
                    .prepared = false,
                    .place = std::nullopt});
}

void World::Do(int node, const TakeTurn& e) {
  for (Move& move : moves_) {
    if (move.node != node || move.operation != e.operation) continue;
    move.place = e.place;
    ++turns_[{move.formation, e.place}];
    return;
  }
  Violate("a turn of no move");
}

void World::Do(int node, const CancelMove& e) {
  for (size_t i = 0; i < moves_.size(); ++i) {
    if (moves_[i].node != node || moves_[i].operation != e.operation) continue;
    return EndMove(i, absl::AbortedError("cancelled"));
  }
}

void World::Do(int, const ReportTenantBroken& e) {
  if (e.formation.value == formation_) ended_ = true;
}

}  // namespace epd::stream_span
