// A node in the test's own process, for ranks whose calls come from the streams of a fake driver: real
// slots, the real engine, and a mover that is a few plain loops.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/c/group.h"
#include "client/c/slot_pool.h"
#include "client/cuda/stream_group.h"
#include "daemon/backend/move_job.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/fakes/cuda/fake_graph.h"
#include "tests/unit/client/cuda/stream_worker.h"

namespace epd::client {

class StreamNode {
 public:
  static constexpr uint32_t kNumRanks = 2;
  static constexpr uint32_t kNumExperts = 4;
  static constexpr uint32_t kTopK = 2;
  static constexpr uint32_t kMaxTokens = 8;
  static constexpr uint32_t kCapacity = 32;
  static constexpr uint32_t kHidden = 8;  // float32
  static constexpr uint64_t kGroupId = 77;
  static constexpr uint64_t kArenaBytes = uint64_t{2} << 20;
  static constexpr uint64_t kEagerBufferBytes = uint64_t{1} << 20;

  explicit StreamNode(Executor executor, bool drop_on_overflow = false);
  ~StreamNode();

  // Waits until the streams have nothing to do: before the buffers go that they write.
  void End();

  // Of one rank, attached; its session is its own.
  std::shared_ptr<StreamGroup> Attach(uint32_t rank);
  Status TryAttach(uint32_t rank, std::shared_ptr<StreamGroup>* group);
  Group& group(uint32_t rank) { return *groups_[rank]; }
  cuda::FakeDriver& driver() { return driver_; }
  cuda::Stream stream(uint32_t rank) { return streams_[rank]; }
  cuda::FakeGraph& graph() { return graph_; }
  const shm::SlotsView& slots(uint32_t rank) { return pools_[rank]->view(); }

  // Every move from now on fails with `status`, until it is OK.
  void FailMoves(const absl::Status& status);
  // The worker dies; a new one serves the sessions, which have drained when this returns.
  void ReplaceWorker();
  // Sessions hear that their formation is over, and have drained when this returns; the worker has not heard it.
  void EndFormation();
  // Hands out new staging, and waits until the ranks say that they have mapped it.
  void FinishReplacement();
  // The daemon is gone: nobody answers any more.
  void EndDaemon();

  // Held streams take work and do none, so that nothing of it has failed while more is put.
  void Hold(bool held) {
    std::lock_guard lock(pumping_);  // What runs already goes first.
    held_ = held;
  }
  // Waits until the streams have nothing to do. False: not within ten seconds.
  bool AwaitStreams();
  // Waits until `done()`. False: not within ten seconds.
  static bool Await(const std::function<bool()>& done);
  int num_moves() const { return num_moves_; }
  // Rows of kHidden that copies between buffers and regions have moved.
  uint64_t num_copied_rows() const { return num_copied_rows_; }
  // Copies whose gate is a word of a slot.
  uint64_t num_gates_in_slots() const { return num_gates_in_slots_; }
  // Launches that move such rows by bulk copies.
  uint64_t num_bulk_copies() const { return num_bulk_copies_; }
  GroupSpec ClientSpec() const;

 private:
  bool HaveEntered() const;
  void MakeArenas();
  std::shared_ptr<const Formation> MakeFormation(uint32_t rank, uint64_t number);
  absl::Status Move(const MoveJob& job);
  void CountCopy(const cuda::CopyRowsArgs& copy, bool in_bulk);
  static void LeaveTail(uint8_t* region, size_t rank, const MoveJob& job);

  const Executor executor_;
  const bool drop_on_overflow_;
  cuda::FakeDriver driver_{{.maps_beside_work = true}};
  cuda::FakeGraph graph_;
  std::atomic<bool> stop_pump_ = false;
  std::mutex pumping_;
  std::atomic<bool> held_ = false;
  bool ended_ = false;
  std::thread pump_;
  std::vector<cuda::Stream> streams_;

  std::vector<int> slots_fds_;
  std::vector<std::shared_ptr<SlotPool>> pools_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<int> arena_fds_;
  std::vector<uint8_t*> arenas_;
  std::unique_ptr<StreamWorker> worker_;
  std::mutex mutex_;
  absl::Status fail_moves_;
  std::atomic<uint64_t> formation_ = 1;
  std::atomic<int> num_moves_ = 0;
  std::atomic<uint64_t> num_copied_rows_ = 0;
  std::atomic<uint64_t> num_gates_in_slots_ = 0;
  std::atomic<uint64_t> num_bulk_copies_ = 0;
  std::atomic<int> num_drained_ = 0;
  std::atomic<bool> lost_ = false;
};

}  // namespace epd::client
