#include "daemon/worker/engine/operation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

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
    case Phase::kGathering:
      return In(PartState::kAbsent);
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
