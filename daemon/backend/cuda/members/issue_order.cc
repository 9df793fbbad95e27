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
  } else if (taken != at_.end() && taken->second.operation.has_value()) {
    differs = absl::StrCat("operation ", *taken->second.operation, " has that place");
  } else if (place < next_) {
    differs = absl::StrCat("that place is past, the next is ", next_);
  }
  if (!differs.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("operation ", operation, " is given place ", place, ", but ", differs));
  }
  Entry& entry = at_[place];
  entry.operation = operation;
  entry.prepared = early_.erase(operation) > 0;
  places_[operation] = place;
  SkipPassedOver();
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

absl::Status IssueOrder::PassedOver(uint64_t place) {
  if (place < next_) {
    return absl::AbortedError(
        absl::StrCat("place ", place, " was issued here and is to be passed over"));
  }
  at_[place].passed_over = true;
  SkipPassedOver();
  return absl::OkStatus();
}

void IssueOrder::Drop(std::map<uint64_t, Entry>::iterator entry) {
  if (entry->second.operation.has_value()) places_.erase(*entry->second.operation);
  at_.erase(entry);
  ++next_;
}

// Whoever passes over a place has said what stood there, or never will.
void IssueOrder::SkipPassedOver() {
  for (auto it = at_.find(next_); it != at_.end() && it->second.passed_over; it = at_.find(next_)) {
    Drop(it);
  }
}

std::optional<OrderedOperation> IssueOrder::Next() {
  const auto it = at_.find(next_);
  if (it == at_.end() || !it->second.prepared) return std::nullopt;
  const OrderedOperation operation = *it->second.operation;
  Drop(it);
  SkipPassedOver();
  return operation;
}

std::optional<OrderedOperation> IssueOrder::HeldBackBy() const {
  const auto it = at_.find(next_);
  if (it == at_.end() || it->second.prepared) return std::nullopt;
  return it->second.operation;
}

}  // namespace epd::cuda
