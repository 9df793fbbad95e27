#include "daemon/control/rendezvous/claim_table.h"

#include <utility>

namespace epd {
namespace {

size_t IndexOf(const Claim& claim, Rank rank) {
  return static_cast<size_t>(std::find(claim.ranks.begin(), claim.ranks.end(), rank) -
                             claim.ranks.begin());
}

}  // namespace

std::vector<ReleasedClaim> ClaimTable::Take(const NodeReport& report) {
  ++num_taken_;
  std::vector<ReleasedClaim> released;
  ClaimKey key = {report.node, report.incarnation, {}, {}};
  for (const Claim& claim : report.claims) {
    key.session = claim.session;
    key.request = claim.request;
    const auto [it, fresh] = claims_.try_emplace(key);
    KnownClaim& known = it->second;
    known.claim = claim;
    known.taken = num_taken_;
    if (fresh) {
      known.arrival = next_arrival_++;
      known.first_seen = changes_.now();
      known.deadline = changes_.now() + claim.remaining;
      known.status = absl::UnavailableError("new");
      earliest_ = std::min(earliest_, known.deadline);
      if (claim.fate == ClaimFate::kHeld) waiting_[claim.spec.name].insert({known.arrival, key});
      changes_.MarkName(claim.spec.name);
    }
    if (claim.fate != ClaimFate::kHeld) released.push_back({key, claim.fate, claim.fate_cause});
  }
  std::vector<ReleasedClaim> all = Vanished(report.node);
  all.insert(all.end(), released.begin(), released.end());
  return all;
}

std::vector<ReleasedClaim> ClaimTable::Vanished(const NodeId& node) const {
  std::vector<ReleasedClaim> out;
  for (const auto& [key, known] : OfNode(node)) {
    if (known.taken == num_taken_) continue;
    out.push_back({key, ClaimFate::kGone,
                   absl::UnavailableError("its node has forgotten the session"),
                   /*vanished=*/true});
  }
  return out;
}

void ClaimTable::StopWaiting(const ClaimKey& key, const KnownClaim& known) {
  const auto it = waiting_.find(known.claim.spec.name);
  if (it == waiting_.end()) return;
  it->second.erase({known.arrival, key});
  if (it->second.empty()) waiting_.erase(it);
}

void ClaimTable::Wait(const ClaimKey& key, const std::string& what_for) {
  KnownClaim& known = claims_.at(key);
  const absl::Status status = absl::UnavailableError(what_for);
  if (known.status == status) return;
  known.status = status;
  changes_.MarkNode(key.node);
}

void ClaimTable::Grant(const ClaimKey& key, GroupId group) {
  KnownClaim& known = claims_.at(key);
  known.disposition = ClaimDisposition::kGranted;
  known.group = group;
  known.status = absl::OkStatus();
  StopWaiting(key, known);
}

void ClaimTable::GiveBack(const ClaimKey& key, const std::string& why) {
  KnownClaim& known = claims_.at(key);
  known.disposition = ClaimDisposition::kWaiting;
  known.given_back = std::exchange(known.group, GroupId{});
  known.since = Formation{};
  known.claim.drained.reset();
  waiting_[known.claim.spec.name].insert({known.arrival, key});
  changes_.MarkName(known.claim.spec.name);
  Wait(key, why);
}

void ClaimTable::Fail(const ClaimKey& key, const absl::Status& status) {
  KnownClaim& known = claims_.at(key);
  StopWaiting(key, known);
  known.disposition = ClaimDisposition::kFailed;
  known.status = status.ok() ? absl::CancelledError("released") : status;
  changes_.MarkNode(key.node);
}

void ClaimTable::Start(const ClaimKey& key, Formation formation) {
  KnownClaim& known = claims_.at(key);
  if (!known.since) known.since = formation;
}

const KnownClaim* ClaimTable::Find(const ClaimKey& key) const {
  const auto it = claims_.find(key);
  return it == claims_.end() ? nullptr : &it->second;
}

ClaimTable::Range ClaimTable::OfNode(const NodeId& node) const {
  const NodeId after{node.value + '\0'};  // No name is between the two.
  return {claims_.lower_bound({node, {}, {}, {}}), claims_.lower_bound({after, {}, {}, {}})};
}

RankHolder ClaimTable::Holder(const ClaimKey& key, Rank rank) const {
  const Claim& claim = At(key).claim;
  const size_t index = IndexOf(claim, rank);
  return {.rank = rank,
          .node = key.node,
          .session = key.session,
          .arena_index = static_cast<uint32_t>(index),
          .host = claim.host,
          .pid = claim.pid,
          .client_name = claim.client_name,
          .client_version = claim.client_version,
          .worker = claim.worker_of_rank(index),
          .started = claim.started};
}

WorkerId ClaimTable::Worker(const ClaimKey& key, Rank rank) const {
  const Claim& claim = At(key).claim;
  return {key.node, claim.worker_of_rank(claim.workers.size() > 1 ? IndexOf(claim, rank) : 0)};
}

std::vector<ClaimKey> ClaimTable::WaitingFor(const std::string& name) const {
  std::vector<ClaimKey> out;
  const auto it = waiting_.find(name);
  if (it == waiting_.end()) return out;
  for (const auto& [arrival, key] : it->second) out.push_back(key);
  return out;
}

void ClaimTable::MarkWaiting() const {
  for (const auto& [name, keys] : waiting_) changes_.MarkName(name);
}

std::vector<ClaimKey> ClaimTable::Expired() const {
  std::vector<ClaimKey> out;
  for (const auto& [key, known] : claims_) {
    if (known.pending() && known.deadline <= changes_.now()) out.push_back(key);
  }
  return out;
}

void ClaimTable::Tighten() {
  earliest_ = absl::InfiniteFuture();
  for (const auto& [key, known] : claims_) {
    if (known.pending()) earliest_ = std::min(earliest_, known.deadline);
  }
}

}  // namespace epd
