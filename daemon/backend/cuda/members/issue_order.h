// The order in which operations enter a communicator: one, on all of its ranks.
//
// NCCL pairs a communicator's operations by the order of their calls, and two communicators on one device
// may wait for each other. So each operation gets a place when it is admitted, from the leader of its
// communicator, and every worker issues places one after the other, without a gap: an operation whose
// rows are not staged yet holds back all that come after it. That is safe because an admitted operation
// waits for nothing but copies, and gets its place only once all members are prepared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"

namespace epd::cuda {

using OrderedOperation = uint64_t;  // An operation's id, unique in its communicator.

// One worker's view of it, for one communicator of one epoch. Holds only what was not issued yet. Pure; not
// thread-safe.
class IssueOrder {
 public:
  // The leader has said: `operation` has `place`. May be said again.
  //   ALREADY_EXISTS  the place or the operation has been placed otherwise, or the place is past: a
  //                   fault of the leader, after which the communicator must be aborted
  absl::Status Placed(OrderedOperation operation, uint64_t place);
  // This rank's part is ready to be issued. May come before Placed.
  void Prepared(OrderedOperation operation);
  // It failed before it was admitted: it will never have a place.
  void Forget(OrderedOperation operation) { early_.erase(operation); }

  // The operation to be issued now, once; nothing while its turn has not come.
  std::optional<OrderedOperation> Next();

  size_t num_held() const { return at_.size() + early_.size(); }

 private:
  struct Entry {
    OrderedOperation operation = 0;
    bool prepared = false;
  };
  uint64_t next_ = 0;
  std::map<uint64_t, Entry> at_;                 // By place, from next_ on.
  std::map<OrderedOperation, uint64_t> places_;  // Of the operations in at_.
  std::set<OrderedOperation> early_;             // Prepared, and without a place.
};

}  // namespace epd::cuda
