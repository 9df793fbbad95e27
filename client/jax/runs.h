// Which execution of its program an XLA run is, on each rank.
//
// XLA's run id tells executions apart inside a process, but is no identity across processes (it
// depends on what else the process ran). So run ids that were not seen before count up, per program
// and rank, from 0: every rank that executes the same programs in the same order counts the same.
// XLA runs the executions of one device one after another, so "unseen" means "the next one".
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "client/jax/call_site.h"

namespace epd::jax {

// Place of one call: the key under which ranks meet, with program and ordinal.
struct CallNumber {
  std::uint64_t execution = 0;
  std::uint32_t occurrence = 0;  // n-th use of the call site in the execution (loops).
};

// The runs of one group in this process. Not thread-safe.
class Runs {
 public:
  // A call that begins: site, XLA's run id, position of the rank along ep.
  struct Call {
    const CallSite& site;
    std::int64_t run_id;
    std::uint32_t rank;
  };

  enum class Outcome {
    kOk,
    kStale,    // The run began in an earlier membership, which is gone: its calls must all fail.
    kOverlap,  // Another run of the same program is under way on this rank: which is which? The
               // call is numbered, but only so that its refusal reaches the other ranks.
  };

  // `begin` allots the number of a new execution of a program on a rank.
  using Begin = std::function<std::uint64_t(std::uint32_t rank, const Digest& program)>;

  // True if the run is known and began in a membership before `membership`.
  bool IsStale(const Call& call, std::uint64_t membership) const;

  // Numbers a call; each kOk and each kOverlap is followed by one End. A call with a name is counted
  // by the C library and gets no number.
  Outcome Start(const Call& call, std::uint64_t membership, const Begin& begin, CallNumber* number);
  void End(const Call& call);

  // Makes the run, begun or not, stale for every later membership than this one.
  void Condemn(const Call& call, std::uint64_t membership);

 private:
  struct RankRun {
    bool numbered = false;  // Has a call without a name.
    std::uint64_t execution = 0;
    std::uint32_t in_flight = 0;
    std::map<std::uint32_t, std::uint32_t> occurrences;  // By ordinal.
  };
  struct Run {
    std::uint64_t executable = 0;
    std::int64_t run_id = 0;
    std::uint64_t membership = 0;
    Digest program{};
    std::uint32_t in_flight = 0;  // Over all ranks.
    std::map<std::uint32_t, RankRun> ranks;
  };

  Run* Find(const Call& call);
  const Run* Find(const Call& call) const;
  Run& Add(const Call& call, std::uint64_t membership);
  // True if a run of the program other than `self` has calls under way on the rank, or is newer.
  bool Overlaps(const Run& self, std::uint32_t rank) const;

  std::deque<Run> runs_;         // Oldest first, bounded.
  std::uint64_t in_flight_ = 0;  // Over all runs.
};

}  // namespace epd::jax
