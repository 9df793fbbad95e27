#include "daemon/worker/engine/operation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {
namespace {

// Whose rows have not come ahead, or, if all have, whose workers have not said that they have all rows.
std::vector<Rank> RanksBehind(const Operation& operation) {
  const TenantPeers& peers = *operation.tenant->peers;
  const OperationPeers::Ahead& ahead = operation.peers.ahead;
  std::vector<Rank> late;
  std::vector<Rank> waiting;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Incarnation worker = peers.node_of_rank[r];
    if (worker == peers.self) continue;
    if (!ahead.landed.contains(Rank(r))) late.push_back(Rank(r));
    if (peers.leads() && !ahead.landed_at.contains(worker)) waiting.push_back(Rank(r));
  }
  return late.empty() ? waiting : late;
}

}  // namespace

std::vector<Rank> Operation::In(PartState state) const {
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < parts.size(); ++r) {
    if (parts[r].state == state) ranks.push_back(Rank(r));
  }
  return ranks;
}

bool Operation::Any(PartState state) const {
  return std::any_of(parts.begin(), parts.end(),
                     [state](const Part& part) { return part.state == state; });
}

std::vector<Rank> Operation::WaitingFor() const {
  switch (phase) {
    case Phase::kGathering: {
      std::vector<Rank> absent = In(PartState::kAbsent);
      return absent.empty() && peers.ahead.sent ? RanksBehind(*this) : absent;
    }
    case Phase::kAdmitted:
      return In(PartState::kCopying);
    case Phase::kGood:
      return In(PartState::kReading);
    case Phase::kFailed: {
      std::vector<Rank> ranks = In(PartState::kCopying);
      const std::vector<Rank> reading = In(PartState::kReading);
      ranks.insert(ranks.end(), reading.begin(), reading.end());
      return ranks;
    }
    case Phase::kQueued:
    case Phase::kMoving:
      return {};
  }
  return {};
}

bool Operation::held() const {
  return moving || making_pages || Any(PartState::kCopying) || Any(PartState::kReading);
}

std::string Operation::Describe() const {
  const auto said = std::find_if(parts.begin(), parts.end(),
                                 [](const Part& part) { return part.state != PartState::kAbsent; });
  return absl::StrCat(said == parts.end() ? "operation" : KindName(said->said.kind), " ", name, " ",
                      epd::Describe(key));
}

}  // namespace epd
