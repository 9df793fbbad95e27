// Device memory that a rank's calls in streams need beside its staging.
#pragma once

#include <cstdint>
#include <vector>

#include "client/c/group.h"
#include "client/c/mutex.h"
#include "client/c/status.h"
#include "client/cuda/rank_moves.h"
#include "client/cuda/stream_call.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// One allocation: of prepares, then the tables of regions, then of moves, then the words of uses, then the experts' owners.
// Thread-safe once it is made. The driver outlives it.
class StreamScratch {
 public:
  StreamScratch(const cuda::DriverTable& driver, uint32_t rank) : driver_(driver), rank_(rank) {}
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  // For groups of the formation's sizes, and sites of a session that has `num_slots` op slots. Once; nothing may wait
  // in a stream.
  //   RESOURCE_EXHAUSTED  device memory
  Status Make(const Formation& formation, uint32_t num_slots);
  // With the device's context current and nothing in its streams.
  void Free();

  // The part of one site: -1 where it needs none.
  //   RESOURCE_EXHAUSTED  there are too many
  Status Take(const StreamCall& call, int* part);
  void GiveBack(const StreamCall& call, int part);

  // Where a site's uses read and write; `number`: StreamSite::number().
  StreamPlaces WorkerPlaces(const StreamCall& call, const RoutingSpec& spec, int part,
                            int number) const;
  RankPlaces OwnPlaces(const RoutingSpec& spec, int part, int number) const;

  cuda::DevicePointer tables() const {
    return memory_ + prepare_bytes_ * static_cast<uint64_t>(max_prepares_);
  }
  // [E]; null: the spec has no table.
  const int32_t* owners() const { return reinterpret_cast<const int32_t*>(owners_); }

 private:
  Status Allocate(uint64_t bytes);
  StreamRegionTables Tables() const;
  bool NeedsPart(const StreamCall& call) const {
    return call.kind == shm::Kind::kPrepare || move_bytes_ != 0;
  }
  std::vector<int>& FreeOf(const StreamCall& call) EPD_REQUIRES(mutex_) {
    return call.kind == shm::Kind::kPrepare ? free_prepares_ : free_moves_;
  }
  cuda::UseWords* WordsOf(int number) const {
    return reinterpret_cast<cuda::UseWords*>(words_) + number;
  }

  const cuda::DriverTable& driver_;
  const uint32_t rank_;
  // Prepares of the rank that may be in streams of this process, and other calls whose rows it moves itself.
  int max_prepares_ = 0;
  int max_moves_ = 0;
  cuda::DevicePointer memory_ = 0;
  uint64_t prepare_bytes_ = 0;  // Of one.
  uint64_t tables_bytes_ = 0;   // 0: the worker moves all rows.
  uint64_t move_bytes_ = 0;     // Of one.
  int32_t num_ranks_ = 0;
  int32_t num_locals_ = 0;          // This rank's experts.
  cuda::DevicePointer words_ = 0;   // [num_slots] UseWords, by StreamSite::number().
  cuda::DevicePointer owners_ = 0;  // [E] int32; 0: the spec has no table.
  Mutex mutex_;
  std::vector<int> free_prepares_ EPD_GUARDED_BY(mutex_);
  std::vector<int> free_moves_ EPD_GUARDED_BY(mutex_);
};

// The most experts of a token that calls of the group may have.
uint32_t MaxTopKOf(const Formation& formation);

}  // namespace epd::client
