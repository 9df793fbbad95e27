#include "daemon/worker/shell/page_work.h"

#include <algorithm>
#include <utility>

namespace epd {

void PageWork::Add(ArenaSetId set, int num_arenas) { sets_[set].num_arenas = num_arenas; }

void PageWork::SetPresentEnd(Set& set, uint64_t end) {
  const auto num_arenas = static_cast<uint64_t>(set.num_arenas);
  for (uint64_t* present : {&present_bytes_, &budget_.present_bytes})
    *present += (end - set.present_end) * num_arenas;  // Or less: modulo 2^64.
  set.present_end = end;
}

void PageWork::Forget(ArenaSetId set) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return;
  SetPresentEnd(found->second, 0);
  sets_.erase(found);
}

void PageWork::GiveBack(const Trim& trim) {
  Set& set = sets_.at(trim.set);
  set.made_end = std::min(set.made_end, trim.offset);
  ++set.num_asked_back;
  ++budget_.num_giving_back;
  given_back_.push_back({.range = {trim.set, trim.offset, trim.bytes}});
}

void PageWork::Make(OperationId operation, const Region& range) {
  Set& set = sets_.at(range.set);
  if (set.orders.empty()) {
    making_.push_back(range.set);
    set.made_end = range.offset;
  }
  set.orders.push_back({.operation = operation, .range = range, .after = set.num_asked_back});
}

std::optional<PageWork::Made> PageWork::Cancel(OperationId operation, ArenaSetId id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return std::nullopt;
  std::deque<Order>& orders = found->second.orders;
  const auto order = std::find_if(orders.begin(), orders.end(),
                                  [&](const Order& one) { return one.operation == operation; });
  if (order == orders.end()) return std::nullopt;
  order->cancelled = true;
  if (under_way_ == id && order == orders.begin()) return std::nullopt;
  const Made made = EndOrder(orders, order, absl::CancelledError("the operation has ended"));
  if (orders.empty()) std::erase(making_, id);
  return made;
}

PageWork::Made PageWork::EndOrder(std::deque<Order>& orders, std::deque<Order>::iterator order,
                                  absl::Status status) {
  Made made = {.operation = order->operation,
               .set = order->range.set,
               .bytes = order->range.bytes,
               .status = std::move(status)};
  orders.erase(order);
  return made;
}

void PageWork::Drop(ArenaSetId set) {
  given_back_.push_back({.kind = Kind::kEndMeetings, .range = {set, 0, 0}});
  given_back_.push_back({.kind = Kind::kDrop, .range = {set, 0, sets_.at(set).present_end}});
  sets_.at(set).num_asked_back += 2;
  budget_.num_giving_back += 2;
}

uint64_t PageWork::PieceBytes(const Set& set) const {
  const uint64_t each = piece_bytes_ / static_cast<uint64_t>(set.num_arenas);
  return std::max(page_bytes_, each / page_bytes_ * page_bytes_);
}

Region PageWork::PieceToMake(const Order& order) const {
  const Set& set = sets_.at(order.range.set);
  const uint64_t end = order.range.offset + order.range.bytes;
  const uint64_t begin = std::min(end, std::max(order.range.offset, set.made_end));
  return {order.range.set, begin, std::min(end - begin, PieceBytes(set))};
}

uint64_t PageWork::Growth(const Region& piece) const {
  const Set& set = sets_.at(piece.set);
  const uint64_t end = piece.offset + piece.bytes;
  const uint64_t more = end > set.present_end ? end - set.present_end : 0;
  return more * static_cast<uint64_t>(set.num_arenas);
}

uint64_t PageWork::BytesNotBack() const {
  std::map<ArenaSetId, uint64_t> lowest;
  for (const GivenBack& one : given_back_) {
    if (one.range.bytes == 0) continue;
    const auto [end, is_first] = lowest.emplace(one.range.set, one.range.offset);
    if (!is_first) end->second = std::min(end->second, one.range.offset);
  }
  uint64_t bytes = 0;
  for (const auto& [id, offset] : lowest) {
    const Set& set = sets_.at(id);
    if (set.present_end > offset) bytes += (set.present_end - offset) * set.num_arenas;
  }
  return bytes;
}

// With nothing to be given back the pool's word is enough, which holds to both limits.
bool PageWork::HasRoom(const Region& piece) const {
  const uint64_t growth = Growth(piece);
  const bool for_all =
      budget_.num_giving_back == 0 || budget_.present_bytes + growth <= budget_.budget_bytes;
  return for_all && (given_back_.empty() || present_bytes_ + growth <= max_present_bytes_);
}

const PageWork::Order* PageWork::NextToMake() const {
  for (ArenaSetId id : making_) {
    const Set& set = sets_.at(id);
    const Order& first = set.orders.front();
    if (first.after <= set.num_given_back && HasRoom(PieceToMake(first))) return &first;
  }
  return nullptr;
}

std::optional<PageWork::Piece> PageWork::Next() {
  const Order* order = NextToMake();
  if (order != nullptr && (!made_last_ || given_back_.empty())) {
    const Region range = PieceToMake(*order);
    Set& set = sets_.at(range.set);
    SetPresentEnd(set, std::max(set.present_end, range.offset + range.bytes));
    under_way_ = range.set;
    return Piece{Kind::kMake, range};
  }
  if (given_back_.empty()) return std::nullopt;
  const GivenBack& first = given_back_.front();
  if (first.range.bytes == 0) return Piece{first.kind, first.range};
  // From the end, so that what is left is below it.
  const uint64_t bytes = std::min(first.range.bytes, PieceBytes(sets_.at(first.range.set)));
  return Piece{Kind::kGiveBack,
               {first.range.set, first.range.offset + first.range.bytes - bytes, bytes}};
}

std::optional<PageWork::Made> PageWork::Done(const Piece& piece, const absl::Status& status) {
  under_way_.reset();
  made_last_ = piece.kind == Kind::kMake;
  if (made_last_) return DoneMaking(piece.range, status);
  GivenBack& first = given_back_.front();
  Set& set = sets_.at(piece.range.set);
  first.range.bytes -= piece.range.bytes;
  if (piece.kind == Kind::kGiveBack)
    SetPresentEnd(set, std::min(set.present_end, piece.range.offset));
  if (first.range.bytes > 0 || (piece.kind != first.kind)) return std::nullopt;
  ++set.num_given_back;
  --budget_.num_giving_back;
  if (piece.kind == Kind::kDrop) Forget(piece.range.set);
  given_back_.pop_front();
  return std::nullopt;
}

std::optional<PageWork::Made> PageWork::DoneMaking(const Region& made, absl::Status status) {
  Set& set = sets_.at(made.set);
  const uint64_t end = made.offset + made.bytes;
  // Where it failed, some arenas may have it although others do not.
  if (status.ok()) set.made_end = std::max(set.made_end, end);
  std::erase(making_, made.set);
  const Order& order = set.orders.front();
  const bool is_whole = end >= order.range.offset + order.range.bytes;
  if (status.ok() && !is_whole && order.cancelled)
    status = absl::CancelledError("the operation has ended");
  std::optional<Made> over;
  if (!status.ok() || is_whole) over = EndOrder(set.orders, set.orders.begin(), std::move(status));
  if (!set.orders.empty()) making_.push_back(made.set);
  return over;
}

}  // namespace epd
