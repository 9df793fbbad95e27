#include "daemon/control/node/pending_orders.h"

#include "absl/strings/str_cat.h"

namespace epd {

void PendingOrders::Take(const OrderRequested& event) {
  const Order& order = event.order;
  const absl::Status bad =
      order.kind == OrderKind::kCreate ? Validate(order.spec) : absl::OkStatus();
  if (!bad.ok()) return outbox_.Add(RpcDone{order.request, bad, GroupId{}});
  Add(order, event.deadline);
}

void PendingOrders::DrainOwn(GroupId group, absl::Time deadline) {
  const RequestId request{next_internal_++};
  Add({.request = request, .kind = OrderKind::kDrain, .group = group, .node_stops = true}, deadline,
      /*internal=*/true);
}

void PendingOrders::Add(Order order, absl::Time deadline, bool internal) {
  const RequestId request = order.request;
  if (deadline == absl::InfiniteFuture()) {
    const absl::Status status = absl::InvalidArgumentError("the request has no deadline");
    return outbox_.Add(RpcDone{request, status, GroupId{}});
  }
  orders_[request] = {std::move(order), deadline, internal};
  outbox_.MarkChanged();
}

void PendingOrders::TakeAnswers(const ClusterView& view) {
  for (const OrderAnswer& answer : view.orders) {
    const auto it = orders_.find(answer.request);
    if (it == orders_.end()) continue;
    if (!it->second.internal) outbox_.Add(RpcDone{answer.request, answer.status, answer.group});
    orders_.erase(it);
    outbox_.MarkChanged();
  }
}

void PendingOrders::Expire(const std::string& no_coordinator) {
  for (auto it = orders_.begin(); it != orders_.end();) {
    const Pending& pending = it->second;
    if (outbox_.now() < pending.deadline + grace_) {
      ++it;
      continue;
    }
    if (!pending.internal) {
      const absl::Status status = absl::DeadlineExceededError(
          absl::StrCat("the coordinator has not answered", no_coordinator.empty() ? "" : ": ",
                       no_coordinator, "; see epctl doctor, then retry"));
      outbox_.Add(RpcDone{it->first, status, pending.order.group});
    }
    it = orders_.erase(it);
    outbox_.MarkChanged();
  }
}

absl::Time PendingOrders::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [request, pending] : orders_) next = std::min(next, pending.deadline + grace_);
  return next;
}

std::vector<std::string> PendingOrders::WaitsWithoutEnd() const {
  std::vector<std::string> out;
  for (const auto& [request, pending] : orders_) {
    if (pending.deadline == absl::InfiniteFuture())
      out.push_back(absl::StrCat("request ", request.value));
  }
  return out;
}

void PendingOrders::PutInto(NodeReport& report) const {
  for (const auto& [request, pending] : orders_) {
    Order& order = report.orders.emplace_back(pending.order);
    order.remaining = std::max(absl::ZeroDuration(), pending.deadline - outbox_.now());
  }
}

}  // namespace epd
