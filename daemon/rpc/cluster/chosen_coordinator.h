// The coordinator that the nodes choose among themselves through etcd (--rendezvous).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "daemon/rpc/cluster/cluster_service.h"
#include "daemon/rpc/cluster/remote_coordinator.h"
#include "daemon/store/etcd_election.h"

namespace epd {

// Follows whoever leads, and lets this node lead when it is chosen. Control thread; the election
// runs on threads of its own and posts what it decides.
class ChosenCoordinator final : public CoordinatorLink {
 public:
  // Both outlive this. `address`: where other nodes reach this one; empty: it never leads.
  ChosenCoordinator(Node& node, ClusterService& cluster, EtcdAddress etcd,
                    const std::string& address);
  // Stands for election, if there is an address, and follows whoever leads. Errors as EtcdElection::Start.
  absl::Status Start() { return election_->Start(); }

  void Send(const NodeReport& report) override;
  void Tick(absl::Time now) override;
  absl::Time NextDeadline() const override;
  void Ask(const v1::AskNodesRequest& request, OnAsked done) override;
  std::optional<v1::ClockOffset> CompareClocks() override {
    return remote_ == nullptr ? std::nullopt : remote_->CompareClocks();
  }

 private:
  // Its block of epochs is half used: a new election brings a new one.
  void StandAgain();
  // Lets go of the coordinator that was followed.
  void Forget(const std::string& why);
  // While nobody coordinates, what waits for it is told why.
  void TellNone();
  void OnNews(const StoreNews& news);
  void Lead(const epd::Lead& won, const StoreNews& news);
  void Follow(const Leadership& leader);
  void StopLeading(const std::string& why);

  Node& node_;
  ClusterService& cluster_;
  std::unique_ptr<RemoteCoordinator> remote_;  // Null: this node leads, or nobody does.
  bool leading_ = false;
  int64_t revision_ = 0;                                   // Of the last leadership.
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // Posted news looks whether it is gone.
  std::unique_ptr<EtcdElection> election_;                 // Last: its thread uses the others.
};

}  // namespace epd
