// How one member of a communicator reaches the others: by NCCL alone, through a library that moves rows itself, or, on
// one node, by reading their memory (direct_link.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/members/communicator.h"
#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/moves/native_rows.h"
#include "daemon/backend/cuda/staging/peer_memory.h"
#include "daemon/backend/member_moves.h"
#include "daemon/backend/move_job.h"

namespace epd::cuda {

// On the exec thread, without waiting. Serves one epoch.
class MemberLink {
 public:
  virtual ~MemberLink() = default;

  virtual CommState state() const = 0;
  virtual RowLink row_link() const = 0;
  // Why it is ending or gone; OK while it forms and serves.
  virtual const absl::Status& cause() const = 0;
  // Not OK: what is in the stream can be ended by nobody; this worker must be replaced.
  virtual absl::Status broken() const { return absl::OkStatus(); }
  // Whether Poll has something to look for beside moves.
  virtual bool busy() const = 0;

  // Memory that Begin needs, for as long as it forms.
  virtual MoveRoom room() const { return {}; }
  // Enters. `id`: none is given to a link that does without NCCL only. `stream`: that of all its operations.
  virtual void Begin(const std::optional<NcclUniqueId>& id, const MovePlaces& places, Stream stream,
                     absl::Time now) = 0;
  virtual void Poll(absl::Time now) = 0;
  // It ends. `worker`: since one of its members is gone for good.
  virtual void End(const std::string& who, bool worker_gone, absl::Time now) = 0;
  virtual void OperationLate(absl::Time now) = 0;

  // How an operation's rows go. `group` and `job` are borrowed.
  //   INVALID_ARGUMENT  it cannot be served
  virtual absl::StatusOr<std::unique_ptr<MemberRows>> Rows(const MoveGroup& group,
                                                           const MoveJob& job) = 0;
  // Puts what goes between the members into the stream. Errors as Communicator::Issue.
  virtual absl::Status Issue(const MoveSteps& steps, Stream stream, absl::Time now) = 0;
  // That is still under way: nothing else may be put there.
  virtual bool launching() const = 0;
  // The oldest operation that was issued is complete.
  virtual void Completed() = 0;

  // A worker of this node says.
  virtual void Hear(NeighbourMessage) {}
  // What is mapped for these arenas' tenants, or for all, and is used by no new operation: to be unmapped once the device
  // is idle.
  virtual std::vector<PeerMemory> Forget(const CudaArenas*) { return {}; }
  virtual std::vector<PeerMemory> TakeMapped() { return {}; }
};

class NativeLink : public MemberLink {
 public:
  NativeLink(const NcclTable& nccl, const CommunicatorOptions& options)
      : self_(options.rank), comm_(nccl, options) {}

  CommState state() const override { return comm_.state(); }
  RowLink row_link() const override { return {.name = "nccl"}; }
  const absl::Status& cause() const override { return comm_.cause(); }
  absl::Status broken() const override { return comm_.broken(); }
  bool busy() const override { return comm_.calling() || comm_.state() == CommState::kForming; }
  void Begin(const std::optional<NcclUniqueId>& id, const MovePlaces&, Stream,
             absl::Time now) override {
    comm_.Begin(*id, now);
  }
  void Poll(absl::Time now) override { comm_.Poll(now); }
  void End(const std::string& who, bool, absl::Time now) override { comm_.PeerLost(who, now); }
  void OperationLate(absl::Time now) override { comm_.OperationLate(now); }
  absl::StatusOr<std::unique_ptr<MemberRows>> Rows(const MoveGroup& group,
                                                   const MoveJob& job) override {
    return NativeRows::Create(group, job, self_);
  }
  absl::Status Issue(const MoveSteps& steps, Stream stream, absl::Time now) override {
    return comm_.Issue(steps.exchange, stream, now);
  }
  bool launching() const override { return comm_.launching(); }
  void Completed() override { comm_.Completed(); }

 private:
  const int self_;
  Communicator comm_;
};

}  // namespace epd::cuda
