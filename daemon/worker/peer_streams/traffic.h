// What has crossed the streams to and from each other node.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "proto/epd/v1/limits.h"

namespace epd {

// Rows with their frames. Counted on gRPC's threads.
struct NodeTraffic {
  std::atomic<uint64_t> sent_bytes{0};
  std::atomic<uint64_t> received_bytes{0};
  // That wait in the streams to the node now.
  std::atomic<uint64_t> queued_messages{0};
  std::atomic<uint64_t> queued_rows{0};  // Of one rank and one operation each.
};

// By name of the node, since the start of this worker. Thread-safe.
class Traffic {
 public:
  // A peer says its name itself: what more of them say than there are nodes adds up under kOthers.
  static constexpr size_t kMaxNodes = limits::kGroupRanks;
  static constexpr const char* kOthers = "(others)";

  // Adds up over all streams to and from `node`.
  std::shared_ptr<NodeTraffic> Of(const std::string& node) {
    const std::lock_guard lock(mutex_);
    const bool room = nodes_.size() < kMaxNodes || nodes_.contains(node);
    std::shared_ptr<NodeTraffic>& found = nodes_[room ? node : kOthers];
    if (found == nullptr) found = std::make_shared<NodeTraffic>();
    return found;
  }

  std::map<std::string, std::shared_ptr<const NodeTraffic>> all() const {
    const std::lock_guard lock(mutex_);
    return {nodes_.begin(), nodes_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<NodeTraffic>> nodes_;
};

}  // namespace epd
