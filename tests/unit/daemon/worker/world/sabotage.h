// What stands between the engine and its surroundings, or in them, and breaks one promise; simulation.cc says which
// invariant must notice.
#pragma once

namespace epd::world {

enum class Sabotage {
  kNone,
  // Between the engine and its surroundings.
  kDropAnswer,            // One answer in twenty never arrives.
  kDoubleAnswer,          // An answer arrives twice.
  kFlipOutcome,           // A rank hears an error although the outcome was good.
  kOtherCause,            // A rank hears another cause than the record holds.
  kDecideTwice,           // An outcome is written twice.
  kAnswerUndecided,       // Answers overtake the record of their outcome.
  kSharedRegion,          // An operation is told the region of another one.
  kLoseRecord,            // A record is never given back.
  kKeepArenas,            // Arenas of an ended group are never dropped.
  kShareArenas,           // A tenant is given the arenas of another one.
  kForgetEagerBuffers,    // A rank is not told in which eager buffers its peers' rows stand.
  kLateEagerBuffers,      // Ranks are told the eager buffers after the outcome.
  kWrongEagerBuffer,      // Ranks are told another eager buffer than the one that rank 0 said.
  kRegionInEagerBuffers,  // A region overlaps the eager buffers.
  kManyEagerBuffers,      // Ranks are told more eager buffers than there are.
  kEarlyPulled,           // A pulled is answered while peers still read.
  kSharedWire,            // Rows are taken into the region of another operation.
  kLateRows,              // Rows are written after their operation has been closed on that worker.
  kSkipTurn,              // A worker does not take part in a communicator's operation in its turn.
  kForgetTokens,  // A worker is not told how many tokens come in its turn, and the others are.
  kForgetCancel,  // A move without a turn is never told so.
  // Of what ranks and epd do.
  kForgetDeadlines,  // Deadlines are never carried out.
  kForgetProcess,    // The engine does not hear that a dead session's process lives.
  kSpreadDeath,      // With a session of one tenant, one of another is said to be dead.
  kForgetEnded,      // A call of an ended formation is said to be of the next one.
  kForgetBases,      // A formation starts without the cut-off.
  kFarBases,         // The cut-off takes two executions more of one rank.
  kWrongExecution,   // A call is said to be of the next execution.
  // Between workers.
  kLoseMessage,           // A stream loses one message in fifty and goes on.
  kSwapMessages,          // A stream delivers in another order.
  kForgetRevoke,          // Nobody hears that an older operation wants a region.
  kFlipDecision,          // A worker hears of a good operation that its group has ended.
  kPhantomRows,           // A worker is told that rows have landed that have not.
  kForgetUnsynchronised,  // Nobody hears that what failed was of streams that had not met.
  kForgetCause,           // The leader does not hear what a call has wrong.
  kForgetStreamCall,      // The leader does not hear that a call comes from a stream.
  kForgetDemand,          // The leader does not hear how many slots a rank needs.
  kLandAside,             // Rows that have gone ahead are written into another eager buffer.
  kKeepRows,              // They are held although nobody wants them any more.
  kForgetLeadersWord,     // The other worker never hears what its leader has decided.
  kForgetRowsLanded,      // The leader never hears that rows are with all workers.
  // Of GPUs' streams and who serves them.
  kAnswerAtOnce,   // An announce is answered although its site's last pulled is not claimed.
  kSpeakUnmapped,  // A session says that it has mapped new staging, and has not.
  kLeaveOpen,      // A dead worker's submissions are answered by nobody.
  kForgetStream,   // The worker does not look at slots that ring nothing.
  kTellLate,       // A stream arms its announce, and says then how many slots its rank needs.
  kStageUngated,   // A stream stages its rows whatever its announce was answered with.
  kStageLate,      // A stream says that its rows are staged, and stages them then.
};

}  // namespace epd::world
