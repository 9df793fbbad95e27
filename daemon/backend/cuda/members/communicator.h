// One rank's place in one NCCL communicator: formed, polled and ended without ever blocking on a peer.
//
// NCCL's first initialisation in a process loads plugins and asks the network, and ncclCommAbort waits for its
// kernels and for the device's memory to be freed: a thread of the communicator's own makes these calls, so
// that whoever polls goes on with other groups meanwhile. A deadline stands over each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/members/call_thread.h"
#include "daemon/backend/cuda/members/communicator_machine.h"
#include "daemon/backend/cuda/members/nccl_table.h"

namespace epd::cuda {

struct CommunicatorOptions {
  uint64_t group_id = 0;  // For messages.
  uint64_t epoch = 0;
  int num_ranks = 0;
  int rank = 0;
  int max_ctas = 0;  // 0: NCCL's choice.
  absl::Duration form_limit = absl::Minutes(5);
  absl::Duration end_limit = absl::Seconds(10);
  // Of an error on another rank NCCL does not say which: so long the word of whoever lost its worker is waited for.
  absl::Duration naming_limit = absl::Seconds(1);
  // Makes the device current on the thread that calls it: NCCL forms on the device of its caller. Empty: there
  // is nothing to do.
  std::function<absl::Status()> enter_device = {};
};

// One peer's bytes of an operation. Ends without bytes are left out on both sides.
struct PeerBytes {
  int peer = 0;
  const void* send = nullptr;
  uint64_t send_bytes = 0;
  void* receive = nullptr;
  uint64_t receive_bytes = 0;
};

// Not thread-safe; time is an argument. The table outlives it.
class Communicator {
 public:
  Communicator(const NcclTable& nccl, const CommunicatorOptions& options);
  // Aborts what is not gone; that is local and blocks on no peer. A call that is under way is left to the end of
  // the process.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  CommState state() const { return machine_.state(); }
  // Why it is being aborted or is gone; OK while it forms and serves, and after an orderly end.
  const absl::Status& cause() const { return cause_; }
  absl::Time next_deadline() const { return deadline_; }
  // Not OK: a call into NCCL has not come back in time, and nothing can end it; the process must be replaced.
  const absl::Status& broken() const { return broken_; }
  // Whether a call is under way; Poll takes what came of it.
  bool calling() const { return thread_.open(); }
  // While it is READY: for what makes another one of it.
  NcclComm handle() const { return comm_; }

  // Enters; returns at once. `id` is a secret and is not kept.
  void Begin(const NcclUniqueId& id, absl::Time now);
  // Asks NCCL how things stand, and lets deadlines pass.
  void Poll(absl::Time now);
  // A member of the epoch is gone: everybody else aborts.
  void PeerLost(const std::string& who, absl::Time now);
  // No operation will come. What is open is cut off; else all ranks must release, within end_limit.
  void Release(absl::Time now);

  // Puts one operation's sends and receives into `stream`, as one group with exact sizes. It must be
  // this communicator's turn (issue_order.h). The caller says when it is complete.
  //   FAILED_PRECONDITION  it is not READY
  //   ABORTED              NCCL refused; the communicator is being aborted
  absl::Status Issue(const std::vector<PeerBytes>& peers, Stream stream, absl::Time now);
  // Whether NCCL is still putting it there, in the background: until Poll has seen it done, nothing else
  // may be put into that stream. So it is while it is being aborted.
  bool launching() const { return launching_ || state() == CommState::kAborting; }
  void Completed() { --num_open_; }
  // The operation that was issued did not complete in time.
  void OperationLate(absl::Time now);

 private:
  enum class Called { kInit, kDestroy, kAbort };
  // Shared with the thread.
  struct Call {
    explicit Call(Called called) : what(called) {}
    const Called what;
    NcclComm comm = nullptr;
    NcclResult code = kNcclSuccess;
    // By the thread behind an init, and by a communicator that goes: the second of the two aborts.
    std::atomic<bool> passed = false;
  };

  void Take(CommEvent event, const absl::Status& why, absl::Time now);
  void Post(Called what, std::function<NcclResult(Call&)> make);
  void TakeCall(absl::Time now);
  void CheckCall(absl::Time now);
  void Destroy(absl::Time now);
  void Abort(absl::Time now);
  void PostAbort();
  void Gone();
  absl::Status Failure(const char* call, NcclResult code) const;
  std::string Where() const;
  NcclResult IssueOne(const PeerBytes& peer, Stream stream) const;

  const NcclTable& nccl_;
  const CommunicatorOptions options_;
  CommMachine machine_;
  NcclComm comm_ = nullptr;
  int num_open_ = 0;
  bool finalizing_ = false;
  bool launching_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Status cause_;
  absl::Status broken_;
  std::shared_ptr<Call> call_;  // While one is under way.
  CallThread thread_;
};

}  // namespace epd::cuda
