#include "daemon/node/request_deduplicator.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {

std::optional<RequestId> RequestDeduplicator::Begin(const std::string& key, Done done) {
  const auto known = by_key_.find(key);
  Order* same = known == by_key_.end() ? nullptr : &orders_.at(known->second);
  if (same != nullptr && same->answer.has_value()) {
    done(*same->answer);
    return std::nullopt;
  }
  if (num_waiting_ >= max_orders_()) {
    done({absl::ResourceExhaustedError(absl::StrCat("operators wait for ", num_waiting_,
                                                    " orders on this node, its limit (max_orders); "
                                                    "see epctl groups for what drains, and retry")),
          GroupId()});
    return std::nullopt;
  }
  ++num_waiting_;
  if (same != nullptr) {
    same->waiting.push_back(std::move(done));
    return std::nullopt;
  }
  const RequestId request(next_++);
  Order& order = orders_[request];
  order.waiting.push_back(std::move(done));
  if (!key.empty()) {
    order.key = key;
    by_key_[key] = request;
  }
  return request;
}

void RequestDeduplicator::Finish(RequestId request, const Answer& answer) {
  const auto it = orders_.find(request);
  if (it == orders_.end() || it->second.answer.has_value()) return;
  it->second.answer = answer;
  const std::vector<Done> waiting = std::exchange(it->second.waiting, {});
  num_waiting_ -= waiting.size();
  finished_.push_back(request);
  while (finished_.size() > max_orders_()) {
    by_key_.erase(orders_.at(finished_.front()).key);
    orders_.erase(finished_.front());
    finished_.pop_front();
  }
  for (const Done& done : waiting) done(answer);
}

std::vector<RequestDeduplicator::Finished> RequestDeduplicator::finished() const {
  std::vector<Finished> out;
  for (const RequestId request : finished_) {
    const Order& order = orders_.at(request);
    out.push_back({request, order.key, *order.answer});
  }
  return out;
}

void RequestDeduplicator::Restore(const std::vector<Finished>& finished, uint64_t next) {
  next_ = next;
  for (const Finished& one : finished) {
    orders_[one.request] = {one.key, {}, one.answer};
    if (!one.key.empty()) by_key_[one.key] = one.request;
    finished_.push_back(one.request);
  }
}

void RequestDeduplicator::FinishAll(const absl::Status& status) {
  std::vector<RequestId> open;
  for (const auto& [request, order] : orders_) {
    if (!order.answer.has_value()) open.push_back(request);
  }
  for (const RequestId request : open) Finish(request, Answer{status, GroupId()});
}

}  // namespace epd
