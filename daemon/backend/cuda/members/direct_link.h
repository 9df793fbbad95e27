// One member's way to the others where all are workers of one node and every device can read every other's memory: rows
// are read where they lie, over NVLink or PCIe, and nothing is sent.
//
//   NEW --Begin--> FORMING --all have greeted, all can--> READY --> GONE
//                     | one cannot
//                     +--> the other link (NCCL), for all members and for good; where there is none: GONE
//
// Why reading, and not pushing: an operation gets its turn only when all members are prepared, so every stage is complete
// by then, and is kept until all members have said that they are done (IssueOrder). So no device waits for another one,
// and there is nothing that a member which is lost could leave somebody waiting for. A row crosses once per device that it
// is for, as with a push, and is written straight to its slots: there is no landing to be read again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/backend/cuda/members/direct_peers.h"
#include "daemon/backend/cuda/members/member_link.h"

namespace epd::cuda {

class DirectLink : public MemberLink {
 public:
  // `otherwise`: what serves where rows cannot go directly; null on all members or on none. `out`, `notes`: what other
  // workers and people are to be told.
  struct Options {
    CommunicatorMember membership;
    absl::Duration form_limit;
    std::string no_otherwise = {};  // Why there is no other link.
  };
  DirectLink(CudaDevice& device, std::unique_ptr<MemberLink> otherwise, const Options& options,
             std::vector<NeighbourMessage>& out, std::vector<std::string>& notes);

  CommState state() const override { return falls_back_ ? otherwise_->state() : state_; }
  RowLink row_link() const override;
  const absl::Status& cause() const override { return falls_back_ ? otherwise_->cause() : cause_; }
  absl::Status broken() const override {
    return falls_back_ ? otherwise_->broken() : absl::OkStatus();
  }
  bool busy() const override {
    return falls_back_ ? otherwise_->busy() : state_ == CommState::kForming;
  }
  MoveRoom room() const override { return otherwise_ == nullptr ? MoveRoom{} : otherwise_->room(); }
  void Begin(const std::optional<NcclUniqueId>& id, const MovePlaces& places, Stream stream,
             absl::Time now) override;
  void Poll(absl::Time now) override;
  void End(const std::string& who, bool worker_gone, absl::Time now) override;
  void OperationLate(absl::Time now) override;
  absl::StatusOr<std::unique_ptr<MemberRows>> Rows(const MoveGroup& group,
                                                   const MoveJob& job) override;
  absl::Status Issue(const MoveSteps& steps, Stream stream, absl::Time now) override;
  bool launching() const override { return falls_back_ && otherwise_->launching(); }
  void Completed() override;

  void Hear(NeighbourMessage message) override { peers_.Hear(std::move(message)); }
  std::vector<PeerMemory> Forget(const CudaArenas* arenas) override {
    return peers_.Forget(arenas);
  }
  std::vector<PeerMemory> TakeMapped() override { return peers_.TakeMapped(); }

 private:
  struct Begun {
    std::optional<NcclUniqueId> id;
    MovePlaces places;
    Stream stream = nullptr;
  };
  void Decide(absl::Time now);
  void Gone(const absl::Status& cause);

  const std::unique_ptr<MemberLink> otherwise_;
  const Options options_;
  std::vector<std::string>& notes_;
  DirectPeers peers_;
  bool falls_back_ = false;
  CommState state_ = CommState::kNone;
  std::optional<Begun> begun_;  // Until it is decided.
  absl::Status cause_;
};

}  // namespace epd::cuda
