// This session's ranks in one group: the state that calls pass through, and the counts that epd
// asks for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/attach_messages.h"
#include "client/c/digest.h"
#include "client/c/direct_programs.h"
#include "client/c/eager_buffers.h"
#include "client/c/epd_client.h"
#include "client/c/mapping.h"
#include "client/c/mutex.h"
#include "client/c/slot_pool.h"
#include "client/c/unique_fd.h"
#include "kernels/routing_plan.h"
#include "kernels/routing_spec.h"

namespace epd::client {

using Program = Digest;

inline constexpr uint64_t kRefusedExecution = UINT64_MAX - 1;

// Which operation a call belongs to; epd_key, resolved.
struct CallKey {
  Program program = {};                    // Digest of the executable or of `name`.
  std::optional<uint64_t> execution = {};  // Unset: the next one of this rank and program.
  uint32_t ordinal = 0;
  uint32_t occurrence = 0;
  std::string name = {};   // Empty: the key has none.
  std::string scope = {};  // Of a key without a name, for people.
};

// An arena of device memory, as it came from the daemon. To be mapped whole.
struct DeviceMemory {
  uint64_t bytes = 0;
  UniqueFd fd;         // To import; or
  std::string handle;  // 64 bytes to open.
  std::string uuid;    // Of the device: 16 bytes.
};

// What a group looks like between a Joined and the Reform that ends it. Immutable; calls share it,
// and the arenas stay mapped until the last of them has ended.
struct Formation {
  struct Arena {
    std::shared_ptr<const Mapping> mapping;
    bool own = false;
    std::shared_ptr<const DeviceMemory> device = nullptr;  // Set: no CPU maps it.
    // Its part of a landing arena, which one mapping holds for all ranks of another node; 0 bytes: all of the mapping.
    uint64_t part_offset = 0;
    uint64_t part_bytes = 0;
    std::byte* data() const { return mapping->data() + part_offset; }
    uint64_t bytes() const { return part_bytes > 0 ? part_bytes : mapping->bytes(); }
  };
  uint64_t group_id = 0;
  uint64_t epoch = 0;
  uint64_t formation = 0;
  // What its plans are of: itself, unless plans of an earlier group were carried over.
  PlanIds plan_ids;
  PlanIds carried_plans;  // Of the earlier group; zeros: nothing was carried over.
  GroupSpec spec;
  std::vector<Arena> arenas;  // By rank; without a mapping where the rank's rows do not come here.
  std::vector<std::shared_ptr<SlotPool>> slots;  // By rank: for the calls of those that are here.
  std::vector<int32_t> expert_owner;             // As the kernels take it.
  uint64_t spec_hash = 0;
  // Of each arena of device memory: where operations on streams take turns. Bytes 0: no such arenas.
  uint64_t stream_region_offset = 0;
  uint64_t stream_region_bytes = 0;
  bool several_nodes = false;          // Not all ranks are on this node.
  bool counts_of_own_experts = false;  // Suffice behind a gather's stage (region_layout.h).
  std::chrono::nanoseconds spin{};
  std::chrono::nanoseconds direct_wait{};  // For peers, before the worker is asked.
  // Rows may go from rank to rank without the worker (direct_call.h).
  bool goes_direct = false;
  std::shared_ptr<EagerBuffers> eager_buffers = std::make_shared<EagerBuffers>();
  std::shared_ptr<DirectPrograms> direct = std::make_shared<DirectPrograms>();

  // What the kernels need for a call with these parameters. Borrows expert_owner.
  RoutingSpec Routing(uint32_t top_k, uint32_t alignment) const;
};

// States: joining -> ready <-> re-forming; any -> ended (left, closed by epd, or the session is
// lost), for good.
//
// Safe from any thread. It never blocks on the socket: it tells epd through `send_drained`, which
// must not call back.
class Group {
 public:
  using SendDrained = std::function<void(const Drained&)>;
  Group(std::string name, std::vector<uint32_t> ranks, SendDrained send_drained);

  const std::string& name() const { return name_; }
  const std::vector<uint32_t>& ranks() const { return ranks_; }

  // ---- from the reader of the socket ----
  void OnJoined(std::shared_ptr<const Formation> formation);
  void OnReform(const Reform& reform);
  void OnDraining(const Status& cause);
  void OnEnded(Status cause);

  // ---- from callers ----

  // Number of a new execution of `program` on `rank`, or kRefusedExecution, of which every call is refused.
  uint64_t BeginExecution(uint32_t rank, const Program& program);

  // Lets a call in: waits for READY within the forming deadline where READY comes back by itself; where it `may_wait` not, nothing
  // is let in unless the group is READY: OK without `formation`, and no EndCall.
  // On success the caller must call EndCall, after it dropped its reference to `formation`;
  // key->execution is then set, and the execution counts as begun. So it does where it is refused and the rank's last
  // call did not fail: it is the one that fails on all ranks. Those that try again and are refused take no number, and
  // are refused after 100 ms.
  //   INVALID_ARGUMENT   this session does not hold the rank
  //   ABORTED            the execution began while calls were refused
  //   DEADLINE_EXCEEDED  READY did not come back
  //   other              the group has ended, or a peer is gone: the cause. If a peer is gone,
  //                      `formation` is the one that ended with it, without arenas and without an
  //                      EndCall: its worker may know an earlier cause of this execution.
  Status BeginCall(uint32_t rank, bool may_wait, CallKey* key,
                   std::shared_ptr<const Formation>* formation);
  // Takes memory only where the group is to be drained.
  void EndCall(uint32_t rank, bool failed);

  // ---- calls in a GPU's stream, which begin and end unseen ----

  // Waits until the group is READY in another formation than number `after`, then lets the streams
  // in, as one call that goes on until EndStreams. False: not until `deadline`, or the group has ended.
  bool BeginStreams(uint64_t after, Clock::time_point deadline,
                    std::shared_ptr<const Formation>* formation);
  void EndStreams();
  // Waits as BeginCall does, for a call that is to be put into a stream.
  //   DEADLINE_EXCEEDED  READY did not come back
  //   other              the group has ended, or a peer is gone: the cause
  Status AwaitReady();
  // Waits until no new call may begin in formation `number` any more. False: not until `deadline`.
  bool AwaitFormationEnd(uint64_t number, Clock::time_point deadline);
  // Whether the group has ended for good, and then why.
  bool HasEnded(Status* cause) const;

  // Whether a call may begin now without waiting.
  bool IsReady() const;

  // Whether a rank is lost, for which calls do not wait.
  bool RefusesCalls() const;

  // Whether a node's daemon that stops in order takes the group along: epd_group_info::stopping.
  epd_group_stopping stopping() const;

  // Whether `formation` is still the group's last one.
  bool IsCurrent(const Formation& formation) const;

  // The last formation, also while re-forming. Null before the first.
  std::shared_ptr<const Formation> current() const;

  // Ends the group for new calls with `cause`, then waits for those in flight.
  //   DEADLINE_EXCEEDED  some were still in flight
  Status Close(Status cause, Clock::time_point deadline);

 private:
  struct Count {
    uint64_t next = 0;     // The next number that is handed out.
    uint64_t begun = 0;    // One above the highest that was armed, or failed for a lost peer: what
                           // epd cuts off at.
    uint64_t refused = 0;  // That took no number since the last Joined.
  };
  enum class State { kJoining, kReady, kReforming, kEnded };

  Status AwaitFormed() EPD_REQUIRES(mutex_);
  bool Holds(uint32_t rank) const;
  // Of a rank that is held.
  void SetFailed(uint32_t rank, bool failed) EPD_REQUIRES(mutex_);
  bool HasFailed(uint32_t rank) const EPD_REQUIRES(mutex_);
  void MarkBegun(uint32_t rank, const Program& program, uint64_t execution) EPD_REQUIRES(mutex_);
  void EndOne() EPD_REQUIRES(mutex_);
  // The rank has failed, and tries again while calls are refused.
  bool TriesAgain(uint32_t rank) const EPD_REQUIRES(mutex_);
  // Holds such a rank up for a moment, or until calls are not refused any more.
  void PaceRetry(uint32_t rank) EPD_REQUIRES(mutex_);
  // Says Drained if the group re-forms and no call is in flight.
  void MaybeDrain() EPD_REQUIRES(mutex_);

  const std::string name_;
  const std::vector<uint32_t> ranks_;
  const SendDrained send_drained_;

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ EPD_GUARDED_BY(mutex_) = State::kJoining;
  Status cause_ EPD_GUARDED_BY(mutex_);              // Of kReforming and kEnded.
  bool callers_wait_ EPD_GUARDED_BY(mutex_) = true;  // While re-forming.
  // A node's daemon stops in order, and the group is about to end, or has ended, with it.
  bool resumable_ EPD_GUARDED_BY(mutex_) = false;
  int in_flight_ EPD_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const Formation> formation_ EPD_GUARDED_BY(mutex_);
  // The formation's numbers, for when the formation itself is unmapped.
  std::shared_ptr<const Formation> last_ EPD_GUARDED_BY(mutex_);
  std::map<std::pair<uint32_t, Program>, Count> counts_ EPD_GUARDED_BY(mutex_);
  std::vector<bool> failed_ EPD_GUARDED_BY(mutex_);  // As ranks_: whether its last call has failed.
};

}  // namespace epd::client
