// Which pages of which arenas are made or given back next: a little of each at a time, so that calls are answered in between.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/staging/staging_pool.h"

namespace epd {

// The machine's memory for staging, of all users.
struct PageBudget {
  uint64_t budget_bytes = 0;   // The pool's, which grants no more than fits once all is given back.
  uint64_t present_bytes = 0;  // Of all arenas of all sets.
  uint64_t num_giving_back = 0;
};

// Of the sets of one user, who has no more than `max_present_bytes` in memory as long as he is to give something back. What is given back goes in the order in which it came, beside what is made: there a set after the other
// has a piece, and in a set the operations one after the other. Pages are made as long as the machine's memory stays within the
// budget, and of a set only once what was to be given back of it before is back: so nobody waits for what others give back, but
// where there is no room before. Nothing of a set that an operation has asked for is given back before it is made, since it is the
// operation's until then. Touches no memory; not thread-safe.
class PageWork {
 public:
  // `budget` outlives this. A piece is of the same range in all arenas of its set: `piece_bytes` over all, or a page of each.
  PageWork(PageBudget& budget, uint64_t piece_bytes, uint64_t page_bytes = 4096,
           uint64_t max_present_bytes = UINT64_MAX)
      : budget_(budget),
        piece_bytes_(piece_bytes),
        page_bytes_(page_bytes),
        max_present_bytes_(max_present_bytes) {}

  // A set of which pages may be made.
  void Add(ArenaSetId set, int num_arenas);
  // Of a set that was added.
  void GiveBack(const Trim& trim);
  void Make(OperationId operation, const Region& range);
  // An operation's pages are made, or they never will be.
  struct Made {
    OperationId operation;
    ArenaSetId set;
    uint64_t bytes = 0;  // Of each arena.
    absl::Status status;
  };
  // The operation wants its pages no more. CANCELLED, where nothing of them is being made; else Done says it. Null: that, or they
  // are made.
  std::optional<Made> Cancel(OperationId operation, ArenaSetId set);
  // Nobody uses the set any more: its meetings end, then everything of it that was made is given back, last of all that was
  // asked for it, and then it is dropped.
  void Drop(ArenaSetId set);
  // The same of a set of which no pages are made: it is gone already.
  void Forget(ArenaSetId set);

  enum class Kind { kMake, kGiveBack, kEndMeetings, kDrop };
  struct Piece {
    Kind kind = Kind::kMake;
    Region range;

    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // What is to be done next, as long as Done is not called; null: nothing, or nothing before others have given something back.
  // What is to be made counts as present from now on.
  std::optional<Piece> Next();
  // `piece` is the last that Next named. Whose pages are there with it, or never will be.
  std::optional<Made> Done(const Piece& piece, const absl::Status& status);

  // What is to be given back and is not back yet, with what was made again above it.
  uint64_t BytesNotBack() const;

  bool empty() const { return given_back_.empty() && making_.empty(); }
  bool has_sets() const { return !sets_.empty(); }

 private:
  struct Order {
    OperationId operation;
    Region range;
    uint64_t after = 0;  // That much of its set given back before.
    bool cancelled = false;
  };
  struct Set {
    int num_arenas = 0;
    std::deque<Order> orders;
    // [0, made_end) is there while there are orders; it may be where there are none.
    uint64_t made_end = 0;
    uint64_t present_end = 0;  // Nothing from here on is in memory.
    uint64_t num_asked_back = 0;
    uint64_t num_given_back = 0;
  };
  struct GivenBack {
    Kind kind = Kind::kGiveBack;
    Region range;
  };
  // Of one arena.
  uint64_t PieceBytes(const Set& set) const;
  Region PieceToMake(const Order& order) const;
  // What making it adds to what is present.
  uint64_t Growth(const Region& piece) const;
  bool HasRoom(const Region& piece) const;
  void SetPresentEnd(Set& set, uint64_t end);
  std::optional<Made> DoneMaking(const Region& made, absl::Status status);
  // Takes it out of its set.
  Made EndOrder(std::deque<Order>& orders, std::deque<Order>::iterator order, absl::Status status);
  // Whose turn it is to have pages made; null: nobody's.
  const Order* NextToMake() const;

  PageBudget& budget_;
  const uint64_t piece_bytes_;
  const uint64_t page_bytes_;
  const uint64_t max_present_bytes_;
  uint64_t present_bytes_ = 0;  // Of all arenas of all sets.
  std::map<ArenaSetId, Set> sets_;
  std::deque<GivenBack> given_back_;     // Ranges that are left.
  std::deque<ArenaSetId> making_;        // Sets with orders, by turns.
  std::optional<ArenaSetId> under_way_;  // Its first order is being made.
  bool made_last_ = false;
};

}  // namespace epd
