// The life of one rank's place in one NCCL communicator, decided in pure code.
//
//            kBegin                kUp                    kRelease
//   NONE ------------> FORMING ------------> READY --------------------------> ENDING
//                         |                    |   (no peer lost, nothing open)    | kGone
//                         | kFailed            | kFailed                           v
//                         | kPeerLost          | kPeerLost                       GONE
//                         | kLate              | kLate (an operation)              ^
//                         | kRelease           v                                   | kGone
//                         +--------------> ABORTING -------------------------------+
//                                            ^ | kPeerLost, kFailed, kLate while ENDING come here too
//
// A communicator whose peer is lost can only be aborted: ncclCommDestroy and ncclCommFinalize wait for
// the peers. All survivors abort, each on its own, as soon as it hears of the loss; then the group forms
// a new communicator, from a new unique id, in a new epoch. A machine serves one epoch and is never used
// again.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace epd::cuda {

enum class CommState { kNone, kForming, kReady, kEnding, kAborting, kGone, kCount };

enum class CommEvent {
  kBegin,     // Enter the communicator.
  kUp,        // NCCL says that all ranks are there.
  kFailed,    // NCCL says that something failed, here or at a peer.
  kLate,      // The deadline for forming, ending or for an operation has passed.
  kPeerLost,  // epd says that a member of the epoch is gone.
  kRelease,   // The group needs it no more.
  kGone,      // It is destroyed or aborted.
  kCount,
};

enum class CommAction { kNothing, kInit, kDestroy, kAbort };

std::string_view Name(CommState state);
std::string_view Name(CommEvent event);

struct CommStep {
  CommState next;
  CommAction action;
};

// What happens on `event` in `state`; nothing when the event has no place there.
std::optional<CommStep> NextStep(CommState state, CommEvent event);
using StepFunction = std::optional<CommStep> (*)(CommState, CommEvent);

// One rank's machine, with the rule that no table can express: what is open is aborted, not destroyed.
class CommMachine {
 public:
  // `step`: another table than NextStep, for a test that wants to see a wrong one found out.
  explicit CommMachine(StepFunction step = &NextStep) : step_(step) {}

  CommState state() const { return state_; }
  bool may_issue() const { return state_ == CommState::kReady; }

  // `num_open`: operations that were issued and are not complete. Events without a place change nothing
  // and ask for nothing: they come late.
  CommAction On(CommEvent event, int num_open = 0);

 private:
  StepFunction step_;
  CommState state_ = CommState::kNone;
};

}  // namespace epd::cuda
