// A seeded simulation of operations over several workers, two of one node and one of another: an engine
// for each, ordered streams between
// them that delay and break, rows that overtake, ranks that err or die, staging for which groups
// with different leaders compete. The invariants are checked after every step.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// What stands between the engines and breaks one promise; the checks must notice.
enum class SpanSabotage {
  kNone,
  kLoseMessage,   // A stream loses one message in fifty and goes on.
  kSwapMessages,  // A stream delivers in another order.
  kForgetRevoke,  // Nobody hears that an older operation wants a region.
  kFlipOutcome,   // A worker hears that an operation is good that has failed, or nothing.
  kLateRows,      // Rows are written after their operation has been closed on that node.
  kPhantomRows,   // A worker is told that rows have landed that have not.
  kSharedRegion,  // An operation is told the region of another one.
  kForgetBases,   // A formation starts without the cut-off.
  kSkipTurn,      // A worker does not take part in a communicator's operation in its turn.
  kForgetCancel,  // A move without a turn is never told so.
};

struct SpanSimulationResult {
  std::string violation;  // Empty: all invariants held after every step. Else which, and when.
  uint64_t num_good = 0;
  uint64_t num_failed = 0;
  uint64_t num_revoked = 0;
  uint64_t num_formations = 0;
  uint64_t num_turns = 0;
  uint64_t num_cancelled = 0;
};

// Invariants, after every step:
//   agreement    an operation that is good on one node is good on all, unless the leader's stream
//                was lost in its formation; and all that fail have one cause
//   truth        an operation is good only when every rank has published it and the rows of every
//                rank are on every other node
//   pairing      the calls of one operation have the same logical execution on all ranks
//   exclusion    a region overlaps no region of another operation on that node that somebody may
//                touch, and rows are written to open regions only
//   answers      a use is answered once
//   order        the members of a communicator, which two tenants share, take part in the same
//                operations in the same places, without gaps
// and when nothing is left to do:
//   progress     no call waits: there is no deadlock, and nobody waits for what nobody will do
//   return       every move, region, record and operation has come back
SpanSimulationResult SimulateSpan(uint64_t seed, int num_events, SpanSabotage sabotage);

}  // namespace epd
