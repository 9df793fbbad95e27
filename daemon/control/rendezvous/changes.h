// One call of the coordinator: when it is, what it has changed so far, and who must look at that.
#pragma once

#include <algorithm>

#include "daemon/control/rendezvous.h"

namespace epd {

// A group that is gone, and what operators who wait for that are told.
struct EndedGroup {
  GroupId id;
  absl::Status status;
};

// The coordinator's parts mark here what the others have to look at; each mark is taken once.
class Changes {
 public:
  // Time does not run backwards.
  void Begin(absl::Time now) { now_ = std::max(now_, now); }
  absl::Time now() const { return now_; }

  void MarkGroup(GroupId id) { groups_.insert(id); }               // May advance.
  void MarkName(const std::string& name) { names_.insert(name); }  // Waiting claims may enter.
  void MarkNode(const NodeId& node) { nodes_.insert(node); }       // Its view may differ.
  void AddEnded(EndedGroup ended) { ended_.push_back(std::move(ended)); }
  void Add(GroupTransition transition) { effects_.push_back(std::move(transition)); }

  std::optional<GroupId> TakeGroup() { return TakeFirst(groups_); }
  std::optional<std::string> TakeName() { return TakeFirst(names_); }
  std::set<NodeId> TakeNodes() { return std::exchange(nodes_, {}); }
  std::vector<EndedGroup> TakeEnded() { return std::exchange(ended_, {}); }
  std::vector<RendezvousEffect> TakeEffects() { return std::exchange(effects_, {}); }

 private:
  template <typename T>
  static std::optional<T> TakeFirst(std::set<T>& marked) {
    if (marked.empty()) return std::nullopt;
    return std::move(marked.extract(marked.begin()).value());
  }

  absl::Time now_ = absl::InfinitePast();
  std::set<GroupId> groups_;
  std::set<std::string> names_;
  std::set<NodeId> nodes_;
  std::vector<EndedGroup> ended_;
  std::vector<RendezvousEffect> effects_;
};

}  // namespace epd
