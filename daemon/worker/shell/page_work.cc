#include "daemon/worker/shell/page_work.h"

#include <algorithm>

namespace epd {

void PageWork::Add(ArenaSetId set, int num_arenas) { sets_[set].num_arenas = num_arenas; }

void PageWork::Commit(const CommitPages& pages) {
  for (const Trim& trim : pages.trims) {
    const auto found = sets_.find(trim.set);
    if (found == sets_.end() || trim.bytes == 0) continue;
    found->second.made_end = std::min(found->second.made_end, trim.offset);
    given_back_.push_back({.range = {trim.set, trim.offset, trim.bytes}});
    ++num_asked_back_;
  }
  Set& set = sets_.at(pages.range.set);
  if (set.orders.empty()) {
    making_.push_back(pages.range.set);
    set.made_end = pages.range.offset;
  }
  set.orders.push_back(
      {.operation = pages.operation, .range = pages.range, .after = num_asked_back_});
}

void PageWork::Drop(ArenaSetId set) {
  const uint64_t end = sets_.at(set).highest_end;
  given_back_.push_back({.kind = Kind::kEndMeetings, .range = {set, 0, 0}});
  given_back_.push_back({.kind = Kind::kDrop, .range = {set, 0, end}});
  num_asked_back_ += 2;
}

Region PageWork::PieceOf(const Region& rest) const {
  const auto num_arenas = static_cast<uint64_t>(sets_.at(rest.set).num_arenas);
  const uint64_t each =
      std::max(page_bytes_, piece_bytes_ / num_arenas / page_bytes_ * page_bytes_);
  return {rest.set, rest.offset, std::min(rest.bytes, each)};
}

const PageWork::Order* PageWork::NextToMake() const {
  for (ArenaSetId set : making_) {
    const Order& first = sets_.at(set).orders.front();
    if (first.after <= num_given_back_) return &first;
  }
  return nullptr;
}

std::optional<PageWork::Piece> PageWork::Next() const {
  const Order* order = NextToMake();
  if (order != nullptr && (!made_last_ || given_back_.empty())) {
    const uint64_t end = order->range.offset + order->range.bytes;
    const uint64_t made_end = sets_.at(order->range.set).made_end;
    const uint64_t begin = std::min(end, std::max(order->range.offset, made_end));
    return Piece{Kind::kMake, PieceOf({order->range.set, begin, end - begin})};
  }
  if (given_back_.empty()) return std::nullopt;
  const GivenBack& first = given_back_.front();
  if (first.range.bytes == 0) return Piece{first.kind, first.range};
  return Piece{Kind::kGiveBack, PieceOf(first.range)};
}

std::optional<PageWork::Made> PageWork::Done(const Piece& piece, const absl::Status& status) {
  made_last_ = piece.kind == Kind::kMake;
  if (made_last_) return DoneMaking(piece.range, status);
  GivenBack& first = given_back_.front();
  first.range.offset += piece.range.bytes;
  first.range.bytes -= piece.range.bytes;
  if (piece.kind == Kind::kDrop) sets_.erase(piece.range.set);
  if (first.range.bytes == 0 && piece.kind == first.kind) {
    given_back_.pop_front();
    ++num_given_back_;
  }
  return std::nullopt;
}

std::optional<PageWork::Made> PageWork::DoneMaking(const Region& made, const absl::Status& status) {
  Set& set = sets_.at(made.set);
  const uint64_t end = made.offset + made.bytes;
  set.highest_end =
      std::max(set.highest_end, end);  // Some arenas may have it although others do not.
  if (status.ok()) set.made_end = std::max(set.made_end, end);
  std::erase(making_, made.set);
  const Order order = set.orders.front();
  const bool over = !status.ok() || end >= order.range.offset + order.range.bytes;
  if (over) set.orders.pop_front();
  if (!set.orders.empty()) making_.push_back(made.set);
  if (!over) return std::nullopt;
  return Made{
      .operation = order.operation, .set = made.set, .bytes = order.range.bytes, .status = status};
}

}  // namespace epd
