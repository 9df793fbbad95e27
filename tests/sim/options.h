// What a run of the simulator is given, and the bugs that can be planted in it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "tests/unit/daemon/worker/world/sabotage.h"

namespace epd::sim {

// Each breaks one thing around the machines under test, so that one invariant must fail; see
// invariants.h.
enum class Bug {
  kNone,
  kSplitPlacement,     // One node is told of another holder than the others are.
  kForgetEpochs,       // Reports and Joins say nothing about earlier epochs.
  kDeadKeepsLease,     // Nobody tells the node that a client has died.
  kLeakRegion,         // A worker keeps the regions of an ended tenant.
  kNoDeadline,         // Claims reach the coordinator without a deadline.
  kNoCoordinatorTick,  // The coordinator's deadlines never fire.
  kGrantTwice,         // A second session is told Joined for a rank.
  kReuseId,            // A worker makes the same unique id again.
  kSwapId,             // One node is given another unique id.
  kActOnStaleView,     // An old view is delivered as if it were new.
  kAnswerTwice,        // A reply to Join is sent twice.
  kSwallowAnswer,      // A reply to Join is never sent.
  kWrongBase,          // One rank's base is off by one.
  kLoseLastViews,      // Once faults have stopped, one node hears nothing any more.
  kSplitCommunicator,  // One node is told of another communicator for the second tenant.
  kMixTenants,         // A Join reaches the node with the name of the other tenant.
  kSpreadDeath,        // With one dead session of a node all of them are reported dead.
  kSpreadWorkerDeath,  // With one worker of a node its others are said to have died.
  kCrossWorkers,       // What is for one worker reaches another.
  kLastCause,          // A node is told what followed from the cause for it.
  kAnswerForOthers,    // One worker's answer is taken for that of its node's others, too.
  kDeafCoordinator,    // Its clock runs on while nothing reaches it.
  kLeaverLingers,      // A session that has left its groups is said to hold staging when it ends.
  kClockRunsOn,        // What everybody lost in a freeze is held against those who wait.
};

struct Options {
  uint64_t seed = 1;
  int events = 200;    // Steps with faults; then faults stop and everything must settle.
  bool stops = false;  // The coordinator is stopped now and then, and goes on.
  // All are frozen together now and then, and go on: the coordinator, nodes and clients. Not with a data plane.
  bool freezes = false;
  // With the data plane: engines in the workers, ranks that call. Else workers only answer.
  bool whole = false;
  // 0: two to four by the seed; with a data plane some seeds have more, up to 64.
  int num_nodes = 0;
  world::Sabotage sabotage = world::Sabotage::kNone;  // Of the data plane.
  bool trace = false;                                 // Keeps the last steps.
  Bug bug = Bug::kNone;
  bool verbose = false;
};

// What a run found. `violation` is empty when all invariants held; else "<invariant>: <what>".
struct Outcome {
  std::string violation;
  int steps = 0;         // All, with the settling phase.
  int num_ready = 0;     // How often a group became READY: a run without any proves little.
  int num_reformed = 0;  // ... and how often after it had been READY before.
  int num_failed_joins = 0;
  int num_nodes = 0;
  int num_good_calls = 0;
  int num_failed_calls = 0;
  absl::Duration simulated;
  std::deque<std::string> last_steps = {};  // When they were asked for.
};

Outcome Simulate(const Options& options);

}  // namespace epd::sim
