// Which unique ids have been used: one serves one epoch of one group.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <unordered_set>

#include "daemon/core/unique_id.h"

namespace epd {

// Remembers digests only, of the last kMax ids. Not thread-safe.
class UsedIds {
 public:
  // False: `id` was used before.
  bool MarkUsed(const UniqueId& id) { return Mark(std::hash<std::string>()(id.bytes())); }

  // As MarkUsed of the id with this digest.
  bool Mark(size_t digest) {
    if (!known_.insert(digest).second) return false;
    order_.push_back(digest);
    if (order_.size() > kMax) {
      known_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }

  const std::deque<size_t>& digests() const { return order_; }  // The oldest first.

 private:
  static constexpr size_t kMax = 65536;
  std::unordered_set<size_t> known_;
  std::deque<size_t> order_;
};

}  // namespace epd
