#include "client/cuda/stream_scratch.h"

#include <algorithm>

#include "client/cuda/upload.h"
#include "kernels/cuda/scratch.h"
#include "kernels/region/region_layout.h"

namespace epd::client {
namespace {

constexpr int kSlotsOfSite = 3;
// A layer that is trained has five sites, and one of them prepares.
constexpr int kSitesOfLayer = 5;
// Where few slots are given to sites of which more prepare.
constexpr int kMinPrepares = 32;

}  // namespace

uint32_t MaxTopKOf(const Formation& formation) {
  return static_cast<uint32_t>(MostTopK(formation.spec.top_k));
}

Status StreamScratch::Make(const Formation& formation, uint32_t num_slots) {
  max_moves_ = static_cast<int>(num_slots) / kSlotsOfSite;
  max_prepares_ = std::max(kMinPrepares, max_moves_ / kSitesOfLayer);
  const RoutingSpec largest = formation.Routing(MaxTopKOf(formation), 1);
  cuda::ScratchCursor measure(nullptr);
  cuda::TakePlanScratch(largest, measure);
  measure.Take<cuda::ReportWord>(1);
  measure.Take<int32_t>(int64_t{formation.spec.num_ranks} * formation.spec.num_experts);
  prepare_bytes_ = measure.used();
  num_ranks_ = largest.num_ranks;
  uint64_t bytes = prepare_bytes_ * static_cast<uint64_t>(max_prepares_);
  if (RanksMove(formation.spec)) {
    num_locals_ = NumLocalExperts(largest, static_cast<int32_t>(rank_));
    cuda::ScratchCursor tables(nullptr);
    TakeStreamRegionTables(formation.spec.num_ranks, tables);
    tables_bytes_ = tables.used();
    cuda::ScratchCursor move(nullptr);
    TakeMoveScratch(largest, num_locals_, move);
    move_bytes_ = move.used();
    bytes += tables_bytes_ + move_bytes_ * static_cast<uint64_t>(max_moves_);
  }
  const uint64_t words_at = bytes;
  bytes += sizeof(cuda::UseWords) * num_slots;
  const uint64_t owners_at = bytes;
  bytes += formation.expert_owner.size() * sizeof(int32_t);
  if (Status s = Allocate(bytes); !s.ok()) return s;
  words_ = memory_ + words_at;
  if (formation.expert_owner.empty()) return {};
  owners_ = memory_ + owners_at;
  return Upload(driver_, formation.expert_owner.data(),
                formation.expert_owner.size() * sizeof(int32_t), owners_);
}

Status StreamScratch::Allocate(uint64_t bytes) {
  const cuda::Result code = driver_.memory_allocate(&memory_, bytes);
  if (code != cuda::kSuccess) {
    memory_ = 0;
    return MakeStatus(Code::kResourceExhausted, "no %llu bytes of device memory for routing: %s",
                      static_cast<unsigned long long>(bytes),
                      cuda::Describe(driver_, "cuMemAlloc", code).c_str());
  }
  MutexLock lock(mutex_);
  for (int i = max_prepares_ - 1; i >= 0; --i) free_prepares_.push_back(i);
  for (int i = max_moves_ - 1; i >= 0 && move_bytes_ != 0; --i) free_moves_.push_back(i);
  return {};
}

void StreamScratch::Free() {
  if (memory_ != 0) driver_.memory_free(memory_);
  memory_ = 0;
}

Status StreamScratch::Take(const StreamCall& call, int* part) {
  *part = -1;
  if (!NeedsPart(call)) return {};
  MutexLock lock(mutex_);
  std::vector<int>& free = FreeOf(call);
  if (free.empty()) {
    return MakeStatus(Code::kResourceExhausted,
                      "%d prepares or %d other calls of this rank are in programs of this process, "
                      "the most there may be with so many op slots; have slots_per_session raised, "
                      "to at most %u, or call in a loop in place of many times",
                      max_prepares_, max_moves_, limits::kMaxOpSlots);
  }
  *part = free.back();
  free.pop_back();
  return {};
}

void StreamScratch::GiveBack(const StreamCall& call, int part) {
  if (part < 0) return;
  MutexLock lock(mutex_);
  FreeOf(call).push_back(part);
}

StreamPlaces StreamScratch::WorkerPlaces(const StreamCall& call, const RoutingSpec& spec, int part,
                                         int number) const {
  StreamPlaces places;
  places.words = WordsOf(number);
  if (call.kind == shm::Kind::kPrepare) {
    cuda::ScratchCursor cursor(
        reinterpret_cast<void*>(memory_ + static_cast<uint64_t>(part) * prepare_bytes_));
    places.scratch = cuda::TakePlanScratch(spec, cursor);
    places.report = cursor.Take<cuda::ReportWord>(1);
    places.counts = cursor.Take<int32_t>(int64_t{spec.num_ranks} * spec.num_experts);
    if (tables_bytes_ != 0) places.staged_counts = Tables().counts;
  }
  return places;
}

StreamRegionTables StreamScratch::Tables() const {
  cuda::ScratchCursor cursor(reinterpret_cast<void*>(tables()));
  return TakeStreamRegionTables(static_cast<uint32_t>(num_ranks_), cursor);
}

RankPlaces StreamScratch::OwnPlaces(const RoutingSpec& spec, int part, int number) const {
  cuda::ScratchCursor cursor(reinterpret_cast<void*>(tables() + tables_bytes_ +
                                                     static_cast<uint64_t>(part) * move_bytes_));
  RankPlaces places = {};
  places.tables = Tables();
  places.scratch = TakeMoveScratch(spec, num_locals_, cursor);
  places.num_locals = num_locals_;
  places.words = WordsOf(number);
  return places;
}

}  // namespace epd::client
