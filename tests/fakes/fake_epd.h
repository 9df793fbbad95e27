// An epd for tests of a real epd-worker process: segments, socket pair, and clients as bare slots.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/unique_fd.h"
#include "daemon/worker/shell/mapping.h"
#include "proto/epd/v1/records_view.h"
#include "proto/epd/v1/slots_view.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// A client's view of its session: it fills requests, arms slots and waits for answers.
class FakeSession {
 public:
  FakeSession(uint64_t id, uint32_t record_index);

  uint64_t id() const { return id_; }
  uint32_t record_index() const { return record_index_; }
  int segment_fd() const { return segment_fd_.get(); }
  int wakeup_fd() const { return wakeup_.get(); }
  shm::SlotsSegment& segment() { return *static_cast<shm::SlotsSegment*>(mapping_.data()); }
  shm::Slot& slot(uint32_t index) { return segment().slots[index]; }

  // Writes `request` into the slot, arms it and rings if the worker sleeps.
  void Arm(uint32_t slot, const shm::SlotRequest& request);
  // The code of the answer; nothing if there is none before the deadline.
  std::optional<uint32_t> Wait(uint32_t slot, int limit_ms = 10'000);
  bool answered(uint32_t slot);

 private:
  uint64_t id_;
  uint32_t record_index_;
  UniqueFd segment_fd_;
  UniqueFd wakeup_;
  Mapping mapping_;
};

struct FakeEpdOptions {
  std::string worker = "daemon/worker/epd-worker";  // Relative to the runfiles.
  uint64_t staging_bytes = 64 << 20;
  uint64_t worker_incarnation = 1;
  std::string nccl_library;
};

// Starts a worker and speaks worker.proto with it. Ends it with its own end.
class FakeEpd {
 public:
  using Options = FakeEpdOptions;
  explicit FakeEpd(Options options = {});
  ~FakeEpd();

  // Starts the next worker on the same records; the former one must be gone.
  void StartWorker();
  void KillWorker();   // SIGKILL, and waits.
  void CloseSocket();  // What the worker sees when epd dies.
  // The exit status as of waitpid, nothing if it still runs after the limit.
  std::optional<int> WaitForExit(int limit_ms = 10'000);

  void Send(const v1::ToWorker& message, const std::vector<int>& fds = {});
  void SendBytes(std::string bytes, const std::vector<int>& fds = {});
  // The next message; fails the test and returns an empty one if none comes.
  v1::FromWorker Receive(std::vector<UniqueFd>* fds = nullptr, int limit_ms = 10'000);

  FakeSession& AddSession(uint64_t id);
  void Introduce(FakeSession& session);

  shm::RecordsSegment& records() { return *static_cast<shm::RecordsSegment*>(records_.data()); }
  std::vector<std::unique_ptr<FakeSession>>& sessions() { return sessions_; }
  pid_t pid() const { return pid_; }
  const v1::WorkerReady& ready() const { return ready_; }

 private:
  Options options_;
  UniqueFd records_fd_;
  Mapping records_;
  UniqueFd socket_;
  pid_t pid_ = -1;
  v1::WorkerReady ready_;
  std::vector<std::unique_ptr<FakeSession>> sessions_;
};

// A started tenant of a FakeEpd: the sessions in rank order, and their arenas as this process maps
// them.
struct FakeTenant {
  uint64_t group_id = 7;
  uint64_t epoch = 1;
  uint64_t formation = 1;
  uint32_t num_experts = 4;
  std::vector<FakeSession*> ranks;
  std::vector<UniqueFd> fds;    // Two for each rank.
  std::vector<Mapping> arenas;  // Read-write.

  char* arena(uint32_t rank) { return static_cast<char*>(arenas[rank].data()); }
  // An announce of `rank` that is sound as it is: prepare, execution 0.
  shm::SlotRequest Announce(uint32_t rank) const;
};

// StartTenant with one rank per session, and its TenantReady.
FakeTenant StartFakeTenant(FakeEpd& epd, uint64_t group_id, uint64_t formation,
                           const v1::GroupSpec& spec);
// A spec of `num_ranks` that passes every check.
v1::GroupSpec FakeSpec(uint32_t num_ranks);

}  // namespace epd
