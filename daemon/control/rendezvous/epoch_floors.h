// Above which epochs and formations a coordinator begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "daemon/core/ids.h"

namespace epd {

// Epochs of a name only grow, also when its group was closed in between and when a predecessor of
// this coordinator gave them out.
class EpochFloors {
 public:
  // Of closed groups so many names are remembered by themselves.
  static constexpr size_t kMaxNames = 4096;

  explicit EpochFloors(Epoch floor) : all_(floor) {}

  // What a node has seen under another coordinator.
  void Hear(Epoch epoch, Formation formation) {
    all_ = std::max(all_, epoch);
    formation_ = std::max(formation_, formation);
  }
  // A group of this name is gone; `last` was its epoch.
  void Close(const std::string& name, Epoch last) {
    Epoch& floor = closed_[name];
    floor = std::max(floor, last);
    if (closed_.size() <= kMaxNames) return;
    for (const auto& [closed, epoch] : closed_) all_ = std::max(all_, epoch);
    closed_.clear();
  }
  // Gives out the next epoch of a name, which is above `above`, too.
  Epoch Next(const std::string& name, Epoch above) {
    const auto closed = closed_.find(name);
    const Epoch floor = closed == closed_.end() ? Epoch{} : closed->second;
    const Epoch next{std::max({above, all_, floor}).value + 1};
    highest_ = std::max(highest_, next);
    return next;
  }

  Epoch highest() const { return highest_; }          // That was given out.
  Formation formation() const { return formation_; }  // Highest of any predecessor.

 private:
  std::map<std::string, Epoch> closed_;
  Epoch all_;  // For names that are forgotten, and of predecessors.
  Formation formation_;
  Epoch highest_;
};

}  // namespace epd
