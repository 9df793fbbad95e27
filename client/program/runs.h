// Which execution of its program a run is, on each rank.
//
// What a framework calls an execution tells executions apart inside a process (XLA's run id), but is
// no identity across processes: it depends on what else the process ran. So executions that were not
// seen before count up, per program and rank, from 0: every rank that executes the same programs in
// the same order counts the same. A device runs its executions one after another, so "unseen" means
// "the next one".
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "client/c/digest.h"
#include "client/program/epd_program.h"

namespace epd::program {

using client::Digest;

// Place of one call: the key under which it finds the other ranks' calls, with program and site.
struct CallNumber {
  std::uint64_t execution = 0;
  std::uint32_t occurrence = 0;  // n-th use of the call site in the execution (loops).
};

// The runs of one group in this process. Not thread-safe.
class Runs {
 public:
  // A call that begins; see epd_program_call.
  struct Call {
    std::uint64_t executable = 0;
    std::uint64_t execution = 0;
    Digest program{};
    std::uint32_t site = 0;
    std::uint32_t occurrence = 0;  // From 1; 0: the next one.
    bool named = false;            // Counted by the C library: it gets no number here.
    std::uint32_t rank = 0;
    epd_program_begun* begun = nullptr;  // See epd_program_call; written by Start.
  };

  enum class Outcome {
    kOk,
    kStale,    // The run began in an earlier join, which is gone: its calls must all fail.
    kOverlap,  // Another run of the same program is under way on this rank: which is which? The
               // call is numbered, but only so that its refusal reaches the other ranks.
  };

  // `begin` allots the number of a new execution of a program on a rank.
  using Begin = std::function<std::uint64_t(std::uint32_t rank, const Digest& program)>;

  // True if the run is known and began before join number `join`.
  bool IsStale(const Call& call, std::uint64_t join) const;

  // Numbers a call; each kOk and each kOverlap is followed by one End.
  Outcome Start(const Call& call, std::uint64_t join, const Begin& begin, CallNumber* number);
  void End(const Call& call);

  // Lets the runs of join number `join`, which has ended with nothing lost, go on in the next one, where each rank's
  // are numbered anew.
  void CarryOver(std::uint64_t join);

  // Makes the run, begun or not, stale for every later join than this one.
  void Condemn(const Call& call, std::uint64_t join);

 private:
  struct RankRun {
    bool numbered = false;  // Has a call without a name.
    std::uint64_t execution = 0;
    std::uint32_t in_flight = 0;
    std::map<std::uint32_t, std::uint32_t> occurrences;  // By site.
  };
  struct Run {
    std::uint64_t executable = 0;
    std::uint64_t id = 0;
    std::uint64_t join = 0;
    Digest program{};
    std::uint32_t in_flight = 0;  // Over all ranks.
    std::map<std::uint32_t, RankRun> ranks;
  };

  // Whether what began in the join goes on in join number `join`.
  bool GoesOn(std::uint64_t begun_join, std::uint64_t join) const;
  Run* Find(const Call& call);
  const Run* Find(const Call& call) const;
  Run& Add(const Call& call, std::uint64_t join);
  // True if a run of the program other than `self` has calls under way on the rank, or is newer.
  bool Overlaps(const Run& self, std::uint32_t rank) const;

  std::deque<Run> runs_;         // Oldest first, bounded.
  std::uint64_t in_flight_ = 0;  // Over all runs.
  // The joins of which each was carried over into the next one, the last of them into join carried_to_.
  std::uint64_t carried_from_ = 0;
  std::uint64_t carried_to_ = 0;
};

}  // namespace epd::program
