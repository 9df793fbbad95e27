#include "daemon/control/rendezvous/epoch_floors.h"

#include <algorithm>

namespace epd {

void EpochFloors::Hear(Epoch epoch, Formation formation) {
  all_ = std::max(all_, epoch);
  formation_ = std::max(formation_, formation);
}

void EpochFloors::Close(const std::string& name, Epoch last) {
  Epoch& floor = closed_[name];
  floor = std::max(floor, last);
  if (closed_.size() <= kMaxNames) return;
  for (const auto& [closed, epoch] : closed_) all_ = std::max(all_, epoch);
  closed_.clear();
}

Epoch EpochFloors::Next(const std::string& name, Epoch above) {
  above = std::max(above, all_);
  if (const auto it = closed_.find(name); it != closed_.end()) above = std::max(above, it->second);
  const Epoch next{above.value + 1};
  highest_ = std::max(highest_, next);
  return next;
}

}  // namespace epd
