// What happened to groups on this node, for people.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "daemon/control/snapshots.h"

namespace epd {

// Counts transitions since epd's start and keeps the newest. Control thread.
class GroupHistory {
 public:
  struct Entry {
    absl::Time at;
    GroupTransition transition;
  };
  using Counts = std::map<std::pair<GroupEvent, GroupState>, uint64_t>;  // By event and new state.

  // Once what the coordinator has said, if that is here, and this node then sees.
  void Note(absl::Time now, const GroupTransition& transition) {
    const auto same = [&](const Entry& said) {
      const GroupTransition& t = said.transition;
      return t.event != GroupEvent::kCount && t.group == transition.group &&
             t.formation == transition.formation && t.from == transition.from &&
             t.to == transition.to;
    };
    if (transition.event == GroupEvent::kCount && std::any_of(newest_.begin(), newest_.end(), same))
      return;
    ++counts_[{transition.event, transition.to}];
    newest_.push_front({now, transition});
    if (newest_.size() > kKept) newest_.pop_back();
  }

  void Restore(Counts counts, std::deque<Entry> newest) {
    counts_ = std::move(counts);
    newest_ = std::move(newest);
  }

  const Counts& counts() const { return counts_; }
  const std::deque<Entry>& newest() const { return newest_; }  // The newest first.

 private:
  static constexpr size_t kKept = 64;

  Counts counts_;
  std::deque<Entry> newest_;
};

}  // namespace epd
