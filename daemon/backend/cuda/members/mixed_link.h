// One member's way to the others where some are workers of its node and some are not: out of the memory of those of its node,
// as far as all of these can read each other's, and by NCCL to the others. It enters NCCL's communicator of all members in any
// case, so READY is when that is and those of its node have greeted.
//
//   all of its node can   pairs of one node read (direct_link.h), pairs of two nodes send
//   one of them cannot    all members of this node send, to each other as well
//
// Nobody of another node needs to know which: whether two members read or send, both decide from the same greetings. An
// operation has one place in one order for both: the regions of its node's members are there first, and NCCL's calls follow,
// so members never wait for each other crosswise.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/backend/cuda/members/direct_peers.h"
#include "daemon/backend/cuda/members/member_link.h"

namespace epd::cuda {

class MixedLink : public MemberLink {
 public:
  struct Options {
    CommunicatorMember membership;
    absl::Duration form_limit;
  };
  // `by_nccl`: of all members. `out`, `notes`: as DirectLink.
  MixedLink(CudaDevice& device, std::unique_ptr<MemberLink> by_nccl, const Options& options,
            std::vector<NeighbourMessage>& out, std::vector<std::string>& notes)
      : by_nccl_(std::move(by_nccl)),
        form_limit_(options.form_limit),
        notes_(notes),
        peers_(device, options.membership, out) {}

  CommState state() const override;
  RowLink row_link() const override;
  const absl::Status& cause() const override { return cause_.ok() ? by_nccl_->cause() : cause_; }
  absl::Status broken() const override { return by_nccl_->broken(); }
  bool busy() const override { return by_nccl_->busy() || state() == CommState::kForming; }
  MoveRoom room() const override { return by_nccl_->room(); }
  void Begin(const std::optional<NcclUniqueId>& id, const MovePlaces& places, Stream stream,
             absl::Time now) override;
  void Poll(absl::Time now) override;
  void End(const std::string& who, bool worker_gone, absl::Time now) override {
    by_nccl_->End(who, worker_gone, now);
  }
  void OperationLate(absl::Time now) override;
  absl::StatusOr<std::unique_ptr<MemberRows>> Rows(const MoveGroup& group,
                                                   const MoveJob& job) override;
  absl::Status Issue(const MoveSteps& steps, Stream stream, absl::Time now) override {
    return by_nccl_->Issue(steps, stream, now);
  }
  bool launching() const override { return by_nccl_->launching(); }
  void Completed() override { by_nccl_->Completed(); }

  void Hear(NeighbourMessage message) override { peers_.Hear(std::move(message)); }
  std::vector<PeerMemory> Forget(const CudaArenas* arenas) override {
    return peers_.Forget(arenas);
  }
  std::vector<PeerMemory> TakeMapped() override { return peers_.TakeMapped(); }

 private:
  void Decide();

  const std::unique_ptr<MemberLink> by_nccl_;
  const absl::Duration form_limit_;
  std::vector<std::string>& notes_;
  DirectPeers peers_;
  bool decided_ = false;  // Whether members of this node read each other:
  std::string problem_;   // ... why not.
  absl::Status cause_;    // Where it is not NCCL's.
};

}  // namespace epd::cuda
