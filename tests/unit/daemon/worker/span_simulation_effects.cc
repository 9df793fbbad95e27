#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/span_world.h"

namespace epd {

void SpanWorld::Perform(int node) {
  Exchange& exchange = nodes_[node].exchange;
  for (Effects effects = exchange.TakeEffects(); !effects.empty();
       effects = exchange.TakeEffects()) {
    for (const Effect& effect : effects) {
      std::visit([this, node](const auto& one) { Do(node, one); }, effect);
    }
  }
}

void SpanWorld::Do(int node, const CommitPages& e) {
  nodes_[node].exchange.PagesCommitted(e.operation, absl::OkStatus(), now_);
}

void SpanWorld::Do(int node, const MoveRows& e) {
  const auto num_local = std::count_if(e.job.parts.begin(), e.job.parts.end(),
                                       [](const MovePart& part) { return part.local; });
  if (num_local != kRanksPerNode) Violate("truth: outputs are made of ranks on other nodes");
  const int group = static_cast<int>(e.group.value) - 1;
  if (!OnDevice(group)) return moves_.push_back({node, e.operation});
  DeviceMove move{.node = node,
                  .operation = e.operation,
                  .name = {e.group, e.formation, 0},
                  .epoch = groups_[group].epoch};
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const Caller& caller : groups_[group].callers[rank]) {
      if (NodeOf(group, rank) == node && caller.operation == e.operation) {
        move.name.number = caller.number;
      }
    }
  }
  device_moves_.push_back(move);
}

void SpanWorld::Do(int node, const TakeTurn& e) {
  ++result_.num_turns;
  if (sabotage_ == SpanSabotage::kSkipTurn && Chance(50)) return;
  const auto move = std::find_if(
      device_moves_.begin(), device_moves_.end(),
      [&](const DeviceMove& one) { return one.node == node && one.operation == e.operation; });
  if (move == device_moves_.end()) return Violate("order: a turn of no move");
  if (move->state != DeviceMove::State::kPrepared) Violate("order: a turn at the wrong time");
  move->state = DeviceMove::State::kIssue;
  move->place = e.place;
  if (communicator_epoch_ != move->epoch) return;  // Aborted.
  uint64_t& next = next_place_[{node, move->epoch}];
  if (e.place != next++) Violate("order: a place is left out");
  auto& [name, taken] = places_[{move->epoch, e.place}];
  if (taken++ > 0 && name != move->name) Violate("order: two operations have one place");
  name = move->name;
}

void SpanWorld::Do(int node, const CancelMove& e) {
  ++result_.num_cancelled;
  if (sabotage_ == SpanSabotage::kForgetCancel) return;
  for (size_t i = 0; i < device_moves_.size(); ++i) {
    const DeviceMove& move = device_moves_[i];
    if (move.node != node || move.operation != e.operation) continue;
    if (move.state == DeviceMove::State::kIssue) Violate("order: cancelled after its turn");
    return EndDeviceMove(i, absl::AbortedError("cancelled"));
  }
}

void SpanWorld::Do(int node, const OpenRecord& e) { nodes_[node].records.insert(e.operation); }
void SpanWorld::Do(int node, const CloseRecord& e) { nodes_[node].records.erase(e.operation); }

void SpanWorld::CheckOverlap(int node, const PeerOperation& operation, const OpenRegion& region) {
  for (const auto& [other, open] : nodes_[node].open) {
    const bool apart = open.set != region.set || open.offset + open.bytes <= region.offset ||
                       region.offset + region.bytes <= open.offset;
    if (other != operation && !apart) Violate("exclusion: two operations share a region");
  }
}

void SpanWorld::Do(int node, const OpenWire& e) {
  OpenRegion region{.set = e.set, .offset = e.offset, .bytes = e.bytes};
  if (sabotage_ == SpanSabotage::kSharedRegion && Chance(20)) region.offset = 0;
  CheckOverlap(node, e.operation, region);
  nodes_[node].open[e.operation] = region;
}

void SpanWorld::Do(int node, const CloseWire& e) {
  if (sabotage_ == SpanSabotage::kLateRows && Chance(4)) return;
  nodes_[node].open.erase(e.operation);
  std::erase_if(rows_,
                [&](const RowsInFlight& r) { return r.operation == e.operation && r.to == node; });
}

void SpanWorld::Do(int, const SendRows& e) {
  for (const auto& [peer, unused] : e.destinations) {
    rows_.push_back({e.operation, static_cast<int>(peer.value) - 100, e.rank});
  }
}

void SpanWorld::Do(int node, const SendToPeer& e) {
  const int to = static_cast<int>(e.peer.value) - 100;
  const LeaderStep step = e.message.step;
  if (step == LeaderStep::kRevoked) ++result_.num_revoked;
  if (sabotage_ == SpanSabotage::kLoseMessage && Chance(50)) return;
  if (sabotage_ == SpanSabotage::kForgetRevoke && step == LeaderStep::kRevoke) return;
  std::deque<PeerMessage>& stream = streams_[{node, to}];
  stream.push_back(e.message);
  if (sabotage_ == SpanSabotage::kFlipOutcome && step == LeaderStep::kDecided && Chance(10)) {
    stream.back().step = LeaderStep::kEnded;
    stream.back().cause = absl::AbortedError("flipped");
  }
}

void SpanWorld::Do(int, const ReportTenantBroken& e) {
  const int group = static_cast<int>(e.group.value) - 1;
  if (groups_[group].formation == e.formation.value) EndFormation(group, e.cause);
}

void SpanWorld::Do(int node, const AnswerSubmission& e) {
  const auto found = nodes_[node].submissions.find(e.submission);
  if (found == nodes_[node].submissions.end()) return Violate("answers: a use was answered twice");
  const auto [group, who] = found->second;
  nodes_[node].submissions.erase(found);
  const auto [rank, name] = who;
  Caller& caller = groups_[group].callers[rank][name];
  const PeerOperation operation{GroupId(group + 1), Formation(groups_[group].formation),
                                caller.number};
  if (caller.state == Caller::State::kAnnouncing && e.status.ok()) {
    caller.state = Caller::State::kCopying;
    caller.operation = e.operation;
    caller.number = e.plan_id;
    caller.region = e.region;
    SimOperation& known = operations_[{operation.group, operation.formation, e.plan_id}];
    const std::pair<int, int64_t> logical{name, Logical(group, rank, name, caller.begun - 1)};
    if (known.logical.has_value() && *known.logical != logical) {
      Violate("pairing: calls of different executions met");
    }
    known.logical = logical;
    return;
  }
  if (caller.state == Caller::State::kPublishing && e.status.ok()) {
    SimOperation& known = operations_[operation];
    known.good.insert(node);
    if (known.published.size() < kRanks) Violate("truth: good before every rank had published");
    if (known.landed.size() < static_cast<size_t>(kRanks * (kNodes - 1))) {
      Violate("truth: good before all rows had landed");
    }
    caller.state = Caller::State::kReading;
    ++result_.num_good;
  } else if (caller.state == Caller::State::kPulling) {
    caller.state = Caller::State::kIdle;
  } else {
    if (caller.state == Caller::State::kPublishing) {
      operations_[operation].failed[node] = std::string(e.status.message());
    }
    caller.state = Caller::State::kIdle;
    ++result_.num_failed;
  }
  const SimOperation& known = operations_[operation];
  if (!groups_[group].leader_lost && !known.good.empty() && !known.failed.empty()) {
    Violate(absl::StrCat("agreement: good on one node, failed on another: ",
                         known.failed.begin()->second));
  }
}

}  // namespace epd
