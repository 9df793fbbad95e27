// Who may use which pages of a device's staging memory: pure bookkeeping, no memory is touched.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ids.h"

namespace epd {

// An arena set: one arena for each rank of one set of peer sessions.
using ArenaSetId = StrongId<struct ArenaSetIdTag, uint64_t>;

// Bytes of a region of `set`, the same range in every one of its arenas. Multiples of the page
// size.
struct Region {
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Region&, const Region&) = default;
};

// Give the pages at or above `offset` of every arena of `set` back to the system (punch a hole up
// to `offset` + `bytes`): they are committed but free, and another set needs the budget.
struct Trim {
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Trim&, const Trim&) = default;
};

struct Allotment {
  Region region;
  std::vector<Trim> trims;  // To be carried out before the region is used.
};

// One pool per device: a budget of bytes over all arenas of all sets. In a set, a region is the
// lowest free range (first fit) and is valid at the same offset in each of its arenas, so it costs
// bytes * num_arenas.
//
// Committed: pages of [0, high water) of each arena. They stay committed when they are freed, so
// that the next operation finds warm pages, until another set needs the budget. Hence sets that are
// used in turn, not at once, need the budget of one.
class StagingPool {
 public:
  // `page_bytes` is a power of two.
  StagingPool(uint64_t budget_bytes, uint64_t page_bytes);

  // Adds an empty set. `arena_bytes` is the address space of each arena; regions end below it.
  //   INVALID_ARGUMENT  num_arenas is 0 or arena_bytes less than a page.
  //   ALREADY_EXISTS    the id is in use.
  absl::Status AddSet(ArenaSetId set, int num_arenas, uint64_t arena_bytes, uint32_t uid = 0);

  // Takes the set and everything in it out; its committed pages, quarantined ones too, return to
  // the budget. Only for a set whose arenas no process maps any more.
  //   NOT_FOUND            no such set.
  //   FAILED_PRECONDITION  regions are in use or quarantined; the message counts them.
  absl::Status RemoveSet(ArenaSetId set);

  // Takes the lowest free range of `bytes` (rounded up to pages; 0 counts as one page) in `set`. Of the sets of its user no more than
  // `max_of_uid` bytes are committed then: his own idle tails are trimmed for it.
  //   NOT_FOUND           no such set.
  //   RESOURCE_EXHAUSTED  does not fit, even after trimming every idle tail; the message has all
  //                       numbers. Retry once something was freed, unless EverFits() is false.
  absl::StatusOr<Allotment> Allocate(ArenaSetId set, uint64_t bytes,
                                     uint64_t max_of_uid = UINT64_MAX);
  // Whether Allocate would keep to `max_of_uid`, however much of the budget is left; false where there is no such set.
  bool FitsUid(ArenaSetId set, uint64_t bytes, uint64_t max_of_uid) const;

  // Returns the region at `offset`; the pages stay committed.
  //   NOT_FOUND            no such set, or no region starts there.
  //   FAILED_PRECONDITION  it is quarantined.
  absl::Status Free(ArenaSetId set, uint64_t offset);

  // Released, but perhaps still written by a process that lives: charged and never reused until
  // Release.
  absl::Status Quarantine(ArenaSetId set, uint64_t offset);
  // The process is gone: a quarantined region is free.
  absl::Status Release(ArenaSetId set, uint64_t offset);

  // So much was given back and is in memory all the same: nobody is given it.
  void SetWithheld(uint64_t bytes) { withheld_bytes_ = bytes; }
  // So much of the budget others have taken from the machine's memory, or a limit of it: nobody is given it until they give it back.
  // `why` names it for those who need it; "": there is nothing.
  void SetShortage(uint64_t bytes, std::string why) {
    short_bytes_ = bytes;
    why_short_ = std::move(why);
  }
  const std::string& why_short() const { return why_short_; }

  // Whether `bytes` could be had in `set` if nothing else were in use: false means waiting is
  // pointless.
  bool EverFits(ArenaSetId set, uint64_t bytes) const;
  // The same as long as the shortage lasts.
  bool FitsInMemory(ArenaSetId set, uint64_t bytes) const;

  struct SetStatus {
    ArenaSetId id;
    int num_arenas = 0;
    uint64_t arena_bytes = 0;   // Address space of one arena.
    uint64_t in_use_bytes = 0;  // These four over all arenas of the set.
    uint64_t quarantined_bytes = 0;
    uint64_t committed_bytes = 0;
    uint64_t peak_in_use_bytes = 0;
  };

  std::vector<Region> Regions() const;  // By set, then offset; quarantined ones too.
  std::vector<SetStatus> Sets() const;  // By id.
  uint64_t budget_bytes() const { return budget_bytes_; }
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t committed_bytes() const { return committed_bytes_; }
  uint64_t committed_bytes_of(uint32_t uid) const;
  uint64_t peak_committed_bytes() const { return peak_committed_bytes_; }
  uint64_t in_use_bytes() const { return in_use_bytes_; }  // Quarantined ones too.
  uint64_t peak_in_use_bytes() const { return peak_in_use_bytes_; }

  // OK when all sums agree and no regions overlap; for tests and the simulator.
  absl::Status CheckConsistent() const;

 private:
  struct Held {
    uint64_t bytes = 0;
    bool quarantined = false;
  };
  struct ArenaSet {
    int num_arenas = 0;
    uint32_t uid = 0;
    uint64_t arena_bytes = 0;
    uint64_t high_water = 0;  // Per arena: [0, high_water) is committed.
    uint64_t peak_in_use_bytes = 0;
    std::map<uint64_t, Held> regions;  // By offset.
  };

  // NOT_FOUND: there is no such set, or no region of it starts there.
  absl::StatusOr<Held*> Find(ArenaSetId set, uint64_t offset);
  uint64_t RoundUp(uint64_t bytes) const;
  // Lowest offset at which `bytes` are free, ignoring the budget; nothing: the arena is too small.
  static std::optional<uint64_t> FirstFit(const ArenaSet& set, uint64_t bytes);
  static uint64_t EndOfLast(const ArenaSet& set);
  // Adds trims of idle tails (largest first) of sets other than `keep`, worth at least `needed_bytes`, to those that are planned: of
  // `uid`'s sets, null: of all. False: there are not enough.
  bool PlanTrims(ArenaSetId keep, const uint32_t* uid, uint64_t needed_bytes,
                 std::vector<Trim>& planned) const;
  uint64_t BytesOf(const std::vector<Trim>& trims) const;  // Over all arenas.
  // What a region of `bytes`, whole pages, at `offset` adds to what is committed.
  static uint64_t Growth(const ArenaSet& set, uint64_t offset, uint64_t bytes);
  // Of the user's own sets, where he would have more than `max_of_uid`. False: that is not enough.
  bool PlanOwnTrims(ArenaSetId set, uint64_t growth, uint64_t max_of_uid,
                    std::vector<Trim>& planned) const;
  void Carry(const Trim& trim);

  uint64_t budget_bytes_;
  uint64_t page_bytes_;
  uint64_t withheld_bytes_ = 0;
  uint64_t short_bytes_ = 0;
  std::string why_short_;
  uint64_t committed_bytes_ = 0;
  uint64_t peak_committed_bytes_ = 0;
  uint64_t in_use_bytes_ = 0;
  uint64_t peak_in_use_bytes_ = 0;
  std::map<ArenaSetId, ArenaSet> sets_;
};

}  // namespace epd
