// A seeded simulation of the engine: ranks, programs and threads that issue in different orders,
// deaths, deadlines, drains, evictions and hostile steps, with the invariants checked at each step.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// What stands between the engine and the simulated world and breaks one promise; the checks must
// notice.
enum class Sabotage {
  kNone,
  kDropAnswer,            // One answer in twenty never arrives.
  kDoubleAnswer,          // An answer arrives twice.
  kFlipOutcome,           // A rank hears an error although the outcome was good.
  kOtherCause,            // A rank hears another cause than the record holds.
  kDecideTwice,           // An outcome is written twice.
  kAnswerUndecided,       // Answers overtake the record of their outcome.
  kSharedRegion,          // An operation is told the region of another one.
  kForgetDeadlines,       // Deadlines are never carried out.
  kLoseRecord,            // A record is never given back.
  kForgetProcess,         // The engine does not hear that a dead session's process lives.
  kKeepArenas,            // Arenas of an ended group are never dropped.
  kShareArenas,           // A tenant is given the arenas of another one.
  kSpreadDeath,           // With a session of one tenant, one of another is said to be dead.
  kForgetEagerBuffers,    // A rank is not told in which eager buffers its peers' rows stand.
  kLateEagerBuffers,      // Ranks are told the eager buffers after the outcome.
  kWrongEagerBuffer,      // Ranks are told another eager buffer than the one that rank 0 said.
  kEarlyPulled,           // A pulled is answered while peers still read.
  kRegionInEagerBuffers,  // A region overlaps the eager buffers.
  kForgetEnded,           // A call of an ended formation is said to be of the next one.
};

struct SimulationResult {
  std::string
      violation;  // Empty: all invariants held after every step. Else which, and at what step.
  uint64_t num_good = 0;  // Calls that ended well, to show that the simulation does something.
  uint64_t num_failed = 0;
};

// Invariants, after every step:
//   - an operation's outcome is recorded once, before anybody is told, and every rank's call ends
//     with it: all good, or all with one cause, also the calls that come after their formation has
//     ended, or after the next one has begun;
//   - no open use is older than its deadlines allow;
//   - a region given to an operation overlaps no region of another open operation in the same set,
//     nor one that a living client may still touch;
//   - arenas live as long as a client or a dead session's process may touch them;
//   - a claim is answered at most once;
//   - tenants that have no session in common have no arena in common, and the death of a session
//     ends no call of a tenant that it does not belong to;
//   - every rank of an operation in eager buffers knows all eager buffers before the outcome is recorded, no eager buffer
//     comes back while a living peer may read it, and no region overlaps the eager buffers;
// and after everything has ended: every claim of a living session was answered, every region,
// record and arena came back.
SimulationResult SimulateExchange(uint64_t seed, int num_events, Sabotage sabotage);

}  // namespace epd
