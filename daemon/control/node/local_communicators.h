// The communicators of groups that a node's workers serve: who makes the unique id, and who has
// initialised with it.
#pragma once

#include "daemon/control/node/coordinator_link.h"
#include "daemon/control/node/local_workers.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node_state.h"

namespace epd {

// What the node's tenants of a group make of the communicator that they share.
struct CommunicatorUse {
  Epoch epoch;                    // The highest that one of them is in.
  std::set<WorkerName> workers;   // Of this node, in it.
  bool id_stays = false;          // In it.
  std::string no_id_reason = {};  // Empty: as before.
};

class LocalCommunicators {
 public:
  LocalCommunicators(const NodeId& node, const LocalWorkers& workers, const CoordinatorLink& link,
                     Outbox& outbox)
      : node_(node), workers_(workers), link_(link), outbox_(outbox) {}

  // Makes those that are new, and forgets those that are not used any more.
  void Update(const std::map<GroupId, CommunicatorUse>& used);
  // Has the unique id of the view's epoch made, and the communicator initialised with it, as far as
  // the view asks for it; then the view's id is erased.
  void Advance(GroupView& view);
  // ... and their answers; one that is out of date is ignored.
  void TakeId(const UniqueIdMade& event);
  void TakeInitialised(const CommunicatorInitialised& event);
  // What the dead worker had begun is over; it is not begun again in the same epoch.
  void ForgetWorker(const WorkerName& dead);
  // ... nor in this one.
  void Fence(GroupId communicator, const WorkerName& worker, Epoch epoch);

  bool IsMember(GroupId communicator, const WorkerName& worker) const;
  // Whether the worker has initialised it in this epoch.
  bool IsInitialised(GroupId communicator, const WorkerName& worker, Epoch epoch) const;
  // SHA-256 (hex) of the epoch's unique id, or "none: <reason>"; empty before.
  std::string IdDigest(GroupId communicator, Epoch epoch) const;
  void PutInto(NodeReport& report) const;

  const std::map<GroupId, LocalCommunicator>& all() const { return communicators_; }
  const UsedIds& used_ids() const { return used_ids_; }
  void Restore(std::map<GroupId, LocalCommunicator> communicators, UsedIds used_ids) {
    communicators_ = std::move(communicators);
    used_ids_ = std::move(used_ids);
  }

 private:
  using Communicator = LocalCommunicator;
  using Member = LocalCommunicator::Member;

  // The member that an answer is about; null: it is out of date.
  Member* Answering(Incarnation worker, GroupId communicator);
  // What the coordinator has decided, or what a worker of this node has made for the others of it.
  static const UniqueId& ChooseId(const GroupView& view, const Communicator& communicator);
  void Initialise(const GroupView& view, const UniqueId& id, const WorkerName& name,
                  Communicator& communicator);

  NodeId node_;
  const LocalWorkers& workers_;
  const CoordinatorLink& link_;
  Outbox& outbox_;
  std::map<GroupId, Communicator> communicators_;
  UsedIds used_ids_;
};

}  // namespace epd
