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

// What is given back goes in the order in which it came, beside what is made: there a set after the other has a piece, and in a set
// the operations one after the other. Pages are made once all is back that was to be given back before: then the pool's budget
// holds for the machine's memory too. Nothing of a set that an operation has asked for is given back before it is
// made, since it is the operation's until then. Touches no memory; not thread-safe.
class PageWork {
 public:
  // A piece is `piece_bytes` over all arenas of its set, and one page of each at least.
  explicit PageWork(uint64_t piece_bytes, uint64_t page_bytes = 4096)
      : piece_bytes_(piece_bytes), page_bytes_(page_bytes) {}

  // A set of which pages may be made.
  void Add(ArenaSetId set, int num_arenas);
  // Of a set that was added; its trims may be of others. They are left out where a set is not known.
  void Commit(const CommitPages& pages);
  // Nobody uses the set any more: its meetings end, then everything of it that was made is given back, last of all that was
  // asked for it, and then it is dropped.
  void Drop(ArenaSetId set);
  // The same of a set of which no pages are made: it is gone already.
  void Forget(ArenaSetId set) { sets_.erase(set); }

  enum class Kind { kMake, kGiveBack, kEndMeetings, kDrop };
  struct Piece {
    Kind kind = Kind::kMake;
    Region range;
  };
  // What is to be done next, as long as Done is not called; null: nothing.
  std::optional<Piece> Next() const;
  // An operation's pages are made, or they cannot be.
  struct Made {
    OperationId operation;
    ArenaSetId set;
    uint64_t bytes = 0;  // Of each arena.
    absl::Status status;
  };
  // `piece` is the last that Next named. Whose pages are there with it, or never will be.
  std::optional<Made> Done(const Piece& piece, const absl::Status& status);

  bool empty() const { return given_back_.empty() && making_.empty(); }

 private:
  struct Order {
    OperationId operation;
    Region range;
    uint64_t after = 0;  // That many given back before.
  };
  struct Set {
    int num_arenas = 0;
    std::deque<Order> orders;
    // [0, made_end) is there while there are orders; it may be where there are none.
    uint64_t made_end = 0;
    uint64_t highest_end = 0;  // Of what was ever made.
  };
  struct GivenBack {
    Kind kind = Kind::kGiveBack;
    Region range;
  };
  Region PieceOf(const Region& rest) const;
  std::optional<Made> DoneMaking(const Region& made, const absl::Status& status);
  // Whose turn it is to have pages made; null: nobody's.
  const Order* NextToMake() const;

  const uint64_t piece_bytes_;
  const uint64_t page_bytes_;
  std::map<ArenaSetId, Set> sets_;
  std::deque<GivenBack> given_back_;  // Ranges that are left.
  uint64_t num_asked_back_ = 0;
  uint64_t num_given_back_ = 0;
  std::deque<ArenaSetId> making_;  // Sets with orders, by turns.
  bool made_last_ = false;
};

}  // namespace epd
