// One call that ranks make without the worker: publishes it in the own area, looks for it in the peers'
// (proto/epd/v1/direct_area.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "client/c/group.h"
#include "client/c/slot_pool.h"
#include "proto/epd/v1/direct_area.h"
#include "proto/epd/v1/direct_tail.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// Used by one thread, once. The formation's arenas stay mapped while it lives.
class DirectCall {
 public:
  DirectCall(const Formation& formation, uint32_t rank, SlotPool& pool)
      : formation_(formation), rank_(rank), pool_(pool) {}

  // What the caller says of a call beside its request. `routes`: of a prepare, this rank's to each expert.
  struct Said {
    uint32_t eager_buffer = 0;  // Where its rows stand.
    std::string_view name;
    std::span<const int32_t> routes;
  };
  // Publishes the call of `request` if all ranks' arenas have areas and there is room. False: it is not published, and the
  // worker is to be asked; peers that look for it are told. Where memory runs out (std::bad_alloc) it is not published either.
  bool Publish(const shm::SlotRequest& request, DirectPrograms::Turn turn, const Said& call);

  // Looks until every rank has published the call. kNo: not all have by `deadline`, or one of them waits for the worker's
  // word: hand over. kNotYet: `until` has come first; await again.
  enum class Met { kYes, kNo, kNotYet };
  Met Await(Clock::time_point deadline, Clock::time_point until = Clock::time_point::max());
  // From here on the worker is asked. As which number it was published is what the announce says.
  uint32_t HandOver();
  // Once more, at every rank.
  bool AllHavePublished();
  // The worker has decided otherwise, or has decided itself: the rows may be written over.
  void Withdraw();

  // Where a peer's rows stand; after AllHavePublished or Await.
  uint32_t EagerBufferOf(uint32_t rank) const;
  // After reading: whether what was read is what was published.
  bool RowsStand() const;
  // This rank reads no more. `ended` and, of a prepare, `padded_rows` are what the records say.
  void Finish(Clock::time_point ended, uint32_t padded_rows);
  // What a prepare's plan is named after.
  uint64_t plan_id() const { return shm::DirectPlanId(call_); }
  // Whether nobody reads this rank's rows any more; then, or once the formation is over, they may be written over. Keeps
  // no arena mapped.
  static std::function<bool()> MakeIsFree(std::shared_ptr<const Formation> formation,
                                          const DirectCall& call);

 private:
  shm::DirectArea& own() const;
  const shm::DirectArea& AreaOf(uint32_t rank) const;
  shm::DirectRecord& record() const { return own().records[count_ % shm::kDirectRecords]; }
  // Sets what all ranks must say alike. False: it cannot be said.
  bool Name(const shm::SlotRequest& request, DirectPrograms::Turn turn);
  void SetState(shm::DirectState state) const;
  bool Look();
  // Whether a rank that has not been seen asks the worker instead of publishing.
  bool SomeoneAsks(uint64_t hash) const;
  void Note(Clock::time_point ended) const;
  // Puts the routes of the publication `count` where the worker finds them: 1 + the first line. 0: there is no room for them,
  // or no place.
  uint32_t PutRoutes(std::span<const int32_t> routes, uint32_t count) const;

  const Formation& formation_;
  const uint32_t rank_;
  SlotPool& pool_;
  shm::DirectCall call_;
  uint32_t count_ = 0;
  std::vector<uint32_t> counts_;  // [num_ranks] where it was found; 0: not yet.
  bool someone_asked_ = false;    // A peer was seen that waits for the worker's word.
};

}  // namespace epd::client
