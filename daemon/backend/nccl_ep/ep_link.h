// One member's way to the others through NCCL EP.
//
//   NEW --Begin--> ASKING --> GATE --> ENTERING --> WARMING --> READY --> LEAVING --> GONE
//                 is the     NCCL,    a thread:    kernels     in a      a thread:
//                 library    without  group and    run once    turn each group and
//                 here?      blocking warm-up                            memory go
//
// Who lacks the library never passes the gate, so nobody waits for him inside of it. Calls into the library
// block, so a thread of their own makes them, and a deadline stands over each. What the library has put into
// the stream waits for its peers on the device and can be ended by nobody: after an error, a late call, or
// with a member's worker gone while something is there, the link is broken and this worker is replaced.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/members/call_thread.h"
#include "daemon/backend/cuda/members/member_link.h"
#include "daemon/backend/nccl_ep/ep_rows.h"
#include "daemon/backend/nccl_ep/ep_session.h"

namespace epd::nccl_ep {

struct EpLinkOptions {
  cuda::CommunicatorOptions communicator;
  GroupSpec group;
  std::string program;   // Asks about the library (ep_environment.h).
  absl::Duration limit;  // For an operation, and for the end.
};

class EpLink : public cuda::MemberLink {
 public:
  // Device and NCCL outlive it.
  EpLink(cuda::CudaDevice& device, const cuda::LoadedNccl& nccl, const EpLinkOptions& options);
  ~EpLink() override;

  cuda::CommState state() const override;
  RowLink row_link() const override { return {.name = "nccl_ep"}; }
  const absl::Status& cause() const override { return cause_; }
  absl::Status broken() const override { return broken_; }
  bool busy() const override;

  cuda::MoveRoom room() const override;
  void Begin(const std::optional<cuda::NcclUniqueId>& id, const cuda::MovePlaces& places,
             cuda::Stream stream, absl::Time now) override;
  void Poll(absl::Time now) override;
  void End(const std::string& who, bool worker_gone, absl::Time now) override;
  void OperationLate(absl::Time now) override;

  absl::StatusOr<std::unique_ptr<cuda::MemberRows>> Rows(const MoveGroup& group,
                                                         const MoveJob& job) override;
  absl::Status Issue(const cuda::MoveSteps& steps, cuda::Stream stream, absl::Time now) override;
  bool launching() const override;
  void Completed() override;

 private:
  enum class Phase { kNew, kAsking, kGate, kEntering, kWarming, kReady, kLeaving, kGone };

  std::string Where() const;
  void Break(const std::string& why);
  void Gone(const absl::Status& cause);
  // A call that puts work into the stream.
  void Post(std::function<absl::Status()> call);
  void TakeCall(absl::Time now);
  void Enter(absl::Time now);
  void LookAtGate(absl::Time now);
  void LookAtStream();
  void CheckDeadline(absl::Time now);
  // Leaves once nothing is in the stream.
  void Leave(absl::Time now);
  bool in_use() const { return thread_.open() || !open_.empty(); }

  cuda::CudaDevice& device_;
  const cuda::LoadedNccl& nccl_;
  const EpLinkOptions options_;
  cuda::Communicator gate_;
  Phase phase_ = Phase::kNew;
  cuda::NcclUniqueId id_ = {};  // Until the gate.
  cuda::DevicePointer warm_up_ = 0;
  cuda::Stream stream_ = nullptr;
  const std::shared_ptr<const Table*> table_ = std::make_shared<const Table*>(nullptr);
  std::unique_ptr<EpSession> session_;
  EpKnown known_;
  std::deque<bool> open_;  // In the stream, oldest first; whether NCCL counts it, too.
  bool holds_ = false;     // The device's streams.
  bool ends_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Status cause_;
  absl::Status broken_;
  cuda::CallThread thread_;
};

}  // namespace epd::nccl_ep
