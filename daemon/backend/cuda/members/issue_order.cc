#include "daemon/backend/cuda/members/issue_order.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace epd::cuda {

absl::Status IssueOrder::Placed(OrderedOperation operation, uint64_t place) {
  const auto known = places_.find(operation);
  if (known != places_.end() && known->second == place) return absl::OkStatus();
  std::string differs;
  const auto taken = at_.find(place);
  if (known != places_.end()) {
    differs = absl::StrCat("it has place ", known->second);
  } else if (taken != at_.end()) {
    differs = absl::StrCat("operation ", taken->second.operation, " has that place");
  } else if (place < next_) {
    differs = absl::StrCat("that place is past, the next is ", next_);
  }
  if (!differs.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("operation ", operation, " is given place ", place, ", but ", differs));
  }
  at_[place] = {.operation = operation, .prepared = early_.erase(operation) > 0};
  places_[operation] = place;
  return absl::OkStatus();
}

void IssueOrder::Prepared(OrderedOperation operation) {
  const auto known = places_.find(operation);
  if (known == places_.end()) {
    early_.insert(operation);
  } else {
    at_.at(known->second).prepared = true;
  }
}

std::optional<OrderedOperation> IssueOrder::Next() {
  const auto it = at_.find(next_);
  if (it == at_.end() || !it->second.prepared) return std::nullopt;
  const OrderedOperation operation = it->second.operation;
  places_.erase(operation);
  at_.erase(it);
  ++next_;
  return operation;
}

}  // namespace epd::cuda
