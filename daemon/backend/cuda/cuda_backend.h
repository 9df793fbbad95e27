// The CUDA backend: arenas in device memory, rows moved by kernels in streams.
//
// What the exec thread asks for goes through one queue, in order: memory can only be made and given back
// while the device is idle, so what waits for that holds back the moves behind it, and they do not keep
// the device from becoming idle.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/members/member_communicator.h"
#include "daemon/backend/cuda/members/nccl_table.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "daemon/backend/cuda/staging/cuda_arenas.h"

namespace epd::cuda {

class CudaBackend : public Backend, public MemberMoves {
 public:
  // `limit`: for what waits in the queue. `nccl`: for groups whose rows cannot go directly; outlives this. `program`:
  // which asks about libraries in a process of its own (machine_probe.h).
  CudaBackend(std::unique_ptr<CudaDevice> device, absl::Duration limit,
              const LoadedNccl* nccl = nullptr, std::string program = "")
      : device_(std::move(device)), limit_(limit), nccl_(nccl), program_(std::move(program)) {}
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  std::string simd() const override { return ""; }
  absl::StatusOr<std::unique_ptr<ArenaSet>> CreateArenas(
      int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena) override;
  void StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                 absl::Time now) override;
  absl::StatusOr<std::vector<MovedRows>> Poll(absl::Time now) override;
  bool busy() const override;
  absl::Status InitCommunicator(uint64_t group_id, uint64_t epoch,
                                const std::string& unique_id) override;

  MemberMoves* member_moves() override { return this; }
  absl::Status Enter(const CommunicatorMember& membership, absl::Time now) override;
  absl::Status Entered(uint64_t communicator, uint64_t epoch) const override;
  RowLink LinkOf(uint64_t communicator, uint64_t epoch) const override;
  void Leave(uint64_t communicator, uint64_t epoch, absl::Time now) override;
  void WorkerLost(uint64_t worker, const std::string& who, absl::Time now) override;
  std::vector<NeighbourMessage> TakeForNeighbours() override {
    return std::exchange(for_neighbours_, {});
  }
  void Hear(NeighbourMessage message) override;
  std::vector<std::string> TakeNotes() override { return std::exchange(notes_, {}); }
  std::vector<PreparedMove> TakePrepared() override { return std::exchange(prepared_, {}); }
  void Issue(const IssuePlace& place, absl::Time now) override;
  void Cancel(MoveId id, absl::Time now) override;

  const CudaDevice& device() const { return *device_; }

 private:
  // An operation from its start to its end. The job is a copy: the engine's may go first.
  struct Move {
    MoveId id = 0;
    CudaArenas* arenas = nullptr;
    MoveGroup group;
    MoveJob job;
    std::optional<RowMoves> rows;
    int block = -1;
  };
  struct MakeArenas {
    CudaArenas* arenas = nullptr;
  };
  using GiveBack = CudaArenas::Left;
  using Request = std::variant<MakeArenas, GiveBack, std::unique_ptr<Move>>;

  // Carries out what can be now; stops at the first that must wait.
  void Pump(absl::Time now);
  // True: it is done with.
  bool Do(MakeArenas& request);
  bool Do(GiveBack& request);
  bool Do(std::unique_ptr<Move>& request, absl::Time now);
  void Finish(WorkId id);
  void Abandon(CudaArenas* arenas, CudaArenas::Left left);
  void Lose(const absl::Status& why);

  // cuda_backend_members.cc
  struct KnownId {
    uint64_t epoch = 0;
    std::optional<NcclUniqueId> id;  // None: of a group that does without, or it is used.
    bool used = false;               // An epoch's communicator is entered once.
  };
  // What other workers have said of a communicator that this one has not entered.
  struct Early {
    uint64_t communicator = 0;
    uint64_t epoch = 0;
    std::vector<NeighbourMessage> messages = {};
  };
  MemberCommunicator* Find(uint64_t communicator, uint64_t epoch) const;
  std::deque<Early>::iterator FindEarly(uint64_t communicator, uint64_t epoch);
  // Why what goes by NCCL cannot be used in this epoch; empty: it can.
  std::string WhyNoNccl(const KnownId& known) const;
  // `no_nccl`: see there.
  std::unique_ptr<MemberLink> MakeLink(const CommunicatorMember& membership,
                                       const std::string& no_nccl);
  void StartWithPeers(MoveId id, CudaArenas& arenas, const MoveGroup& group, const MoveJob& job);
  absl::StatusOr<int> FreeStream(absl::Time now);
  void PollCommunicators(absl::Time now);

  std::unique_ptr<CudaDevice> device_;
  const absl::Duration limit_;
  std::deque<Request> queue_;
  absl::Time waits_since_ = absl::InfiniteFuture();  // The first of the queue.
  std::map<MoveId, std::unique_ptr<Move>> moves_;    // In streams.
  std::vector<MovedRows> moved_;
  int next_stream_ = 0;
  const LoadedNccl* const nccl_;
  const std::string program_;
  std::map<uint64_t, KnownId> ids_;  // By communicator.
  std::deque<uint64_t>
      id_order_;  // The same communicators, the oldest first: nobody says which are over.
  std::deque<Early> early_;  // The oldest first.
  std::vector<NeighbourMessage> for_neighbours_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<MemberCommunicator>> communicators_;
  std::vector<PreparedMove> prepared_;
  absl::Time now_ = absl::InfinitePast();
  absl::Status lost_;
};

}  // namespace epd::cuda
