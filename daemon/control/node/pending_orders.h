// What operators have asked this node for, until the coordinator has answered.
#pragma once

#include <map>

#include "daemon/control/node/outbox.h"
#include "daemon/control/node_events.h"

namespace epd {

class PendingOrders {
 public:
  PendingOrders(absl::Duration coordinator_grace, Outbox& outbox)
      : grace_(coordinator_grace), outbox_(outbox) {}

  void Take(const OrderRequested& event);
  // For this node itself: nobody is told how it went.
  void DrainOwn(GroupId group, absl::Time deadline);

  void TakeAnswers(const ClusterView& view);
  // Answers those whose deadline and grace are over.
  // `no_coordinator`: why there is none; "": there is one.
  void Expire(const std::string& no_coordinator);

  absl::Time NextDeadline() const;
  // As Rendezvous::WaitsWithoutEnd.
  std::vector<std::string> WaitsWithoutEnd() const;
  void PutInto(NodeReport& report) const;

 private:
  struct Pending {
    Order order;
    absl::Time deadline;
    bool internal = false;
  };

  void Add(Order order, absl::Time deadline, bool internal = false);

  absl::Duration grace_;
  Outbox& outbox_;
  std::map<RequestId, Pending> orders_;
  uint64_t next_internal_ = uint64_t{1} << 63;
};

}  // namespace epd
