#include "daemon/rpc/cluster/chosen_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/cluster/cluster_parts.h"

namespace epd {
namespace {

// Groups that operators made, as the store keeps them: an order to create each, with its id.
KeptValues MakeStoreValues(const std::vector<PersistentGroup>& groups) {
  KeptValues values;
  for (const PersistentGroup& group : groups) {
    v1::ClusterOrder order;
    order.set_kind(v1::ORDER_KIND_CREATE);
    order.set_proposed(group.id.value);
    *order.mutable_spec() = ToProto(group.spec);
    const std::string key = absl::StrCat(group.spec.name, "/", group.spec.tenant);
    values[absl::StrCat("groups/", key)] = order.SerializeAsString();
  }
  return values;
}

std::vector<PersistentGroup> ParseGroups(const KeptValues& values) {
  std::vector<PersistentGroup> groups;
  for (const auto& [key, value] : values) {
    v1::ClusterOrder order;
    PersistentGroup group;
    absl::Status status = order.ParseFromString(value) && order.proposed() != 0
                              ? Get(order.spec(), group.spec)
                              : absl::DataLossError("its value is no order to create a group");
    if (!status.ok()) {
      Log(LogLevel::kError, "stored group dropped",
          {{"key", key}, {"why", status.message()}, {"do", "create it again"}});
      continue;
    }
    group.id = GroupId(order.proposed());
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

ChosenCoordinator::ChosenCoordinator(Node& node, ClusterService& cluster, EtcdAddress etcd,
                                     const std::string& address)
    : node_(node), cluster_(cluster) {
  node_.coordination().SetLeader("", "the cluster's coordinator is not known yet");
  EtcdElection::Options options;
  options.etcd = std::move(etcd);
  options.self.node = node_.id().value;
  options.self.address = address;
  options.self.incarnation = node_.control().options().incarnation;
  options.lease = node_.settings().lease;
  const Settings& s = node_.settings();
  options.access = {s.etcd_ca, s.etcd_cert, s.etcd_key, s.etcd_user, s.etcd_password_file};
  election_ = std::make_unique<EtcdElection>(
      std::move(options), [this, weak = std::weak_ptr<int>(alive_)](StoreNews news) {
        node_.loop().Post([this, weak, news = std::move(news)] {
          if (!weak.expired()) OnNews(news);
        });
      });
  node_.coordination().SetStoreLease([this, weak = std::weak_ptr<int>(alive_)] {
    if (weak.expired()) return StoreLease();
    const EtcdElection::Lease lease = election_->lease();
    return StoreLease{lease.holder, lease.revision, lease.held_until};
  });
}

void ChosenCoordinator::StandAgain() {
  StopLeading("its epochs are used up; it stands for election again");
  election_->Resign();
}

void ChosenCoordinator::OnNews(const StoreNews& news) {
  if (const auto* lead = std::get_if<epd::Lead>(&news.action)) return Lead(*lead, news);
  if (const auto* follow = std::get_if<epd::Follow>(&news.action)) return Follow(follow->leader);
  if (const auto* none = std::get_if<NoLeader>(&news.action)) {
    StopLeading(std::string(none->why.message()));
    Forget(std::string(none->why.message()));
    Log(LogLevel::kWarn, "no coordinator", {{"why", none->why.message()}});
    node_.coordination().SetLeader("", std::string(none->why.message()));
    return TellNone();
  }
  if (const auto* problem = std::get_if<StoreProblem>(&news.action)) {
    if (problem->what.ok()) {
      Log(LogLevel::kInfo, "etcd problem is over");
      node_.coordination().SetStoreProblem("");
      return TellNone();
    }
    Log(LogLevel::kError, "etcd problem",
        {{"code", absl::StatusCodeToString(problem->what.code())},
         {"why", problem->what.message()}});
    node_.coordination().SetStoreProblem(std::string(problem->what.message()));
    TellNone();
  }
}

void ChosenCoordinator::TellNone() {
  const Coordination& now = node_.coordination();
  if (!now.leader().empty()) return;
  node_.Handle(CoordinatorLost{absl::UnavailableError(absl::StrCat(
      now.why_no_leader(), now.store_problem().empty() ? "" : ": ", now.store_problem()))});
}

void ChosenCoordinator::Lead(const epd::Lead& won, const StoreNews& news) {
  const std::vector<std::string>& nodes = news.nodes;
  remote_.reset();
  leading_ = true;
  revision_ = won.revision;
  Log(LogLevel::kInfo, "leading",
      {{"revision", won.revision},
       {"epochs_above", won.block.floor},
       {"epochs_up_to", won.block.ceiling},
       {"waits_for_nodes", nodes.size()}});
  node_.coordination().SetLeader(absl::StrCat("(this node) ", node_.id().value), "");
  Leading how;
  how.floor = Epoch(won.block.floor);
  for (const std::string& node : nodes) how.expected.insert(NodeId{node});
  how.resign_at = Epoch(won.block.floor + kEpochsPerLeadership / 2);
  how.resign = [this, weak = std::weak_ptr<int>(alive_)] {
    node_.loop().Post([this, weak] {
      if (!weak.expired()) StandAgain();
    });
  };
  how.persistent = ParseGroups(news.kept);
  how.keep = [this, weak = std::weak_ptr<int>(alive_),
              revision = won.revision](const std::vector<PersistentGroup>& groups) {
    if (weak.expired() || election_ == nullptr) return;
    const auto tell = [this, weak, revision](const Coordination::Change& change) {
      node_.loop().Post([this, weak, revision, change] {
        if (weak.expired() || !leading_ || revision != revision_) return;
        node_.coordination().Call(change);
      });
    };
    election_->Keep(
        {.revision = revision,
         .values = MakeStoreValues(groups),
         .kept =
             [tell, groups] {
               tell([groups](Rendezvous& own, absl::Time now) { return own.SetKept(now, groups); });
             },
         .refused =
             [tell](const absl::Status& why) {
               tell([why](Rendezvous& own, absl::Time now) { return own.RefuseToKeep(now, why); });
             }});
  };
  node_.coordination().Lead(how);
}

void ChosenCoordinator::Follow(const Leadership& leader) {
  StopLeading(absl::StrCat("node ", leader.node, " coordinates now"));
  Forget(absl::StrCat("node ", leader.node, " coordinates now"));
  Log(LogLevel::kInfo, "following",
      {{"coordinator", leader.address}, {"node", leader.node}, {"revision", leader.revision}});
  node_.coordination().SetLeader(leader.address, "");
  remote_ = std::make_unique<RemoteCoordinator>(leader.address, node_, cluster_,
                                                [this, leader] { election_->Refused(leader); });
}

void ChosenCoordinator::Forget(const std::string& why) {
  if (std::exchange(remote_, nullptr) != nullptr)
    node_.Handle(CoordinatorLost{absl::UnavailableError(why)});
}

void ChosenCoordinator::StopLeading(const std::string& why) {
  if (!std::exchange(leading_, false)) return;
  Log(LogLevel::kWarn, "stepped down", {{"why", why}});
  node_.coordination().StopLeading(*this, absl::UnavailableError(why));
  cluster_.FinishAll(absl::UnavailableError(why));
}

void ChosenCoordinator::Send(const NodeReport& report) {
  if (remote_ != nullptr) remote_->Send(report);
}

void ChosenCoordinator::Tick(absl::Time now) {
  if (remote_ != nullptr) remote_->Tick(now);
}

void ChosenCoordinator::Ask(const v1::AskNodesRequest& request, OnAsked done) {
  if (remote_ != nullptr) return remote_->Ask(request, std::move(done));
  cluster_.peers().Ask(request, std::move(done));
}

absl::Time ChosenCoordinator::NextDeadline() const {
  return remote_ != nullptr ? remote_->NextDeadline() : absl::InfiniteFuture();
}

}  // namespace epd
