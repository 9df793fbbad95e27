#include "daemon/backend/cuda/members/communicator_machine.h"

namespace epd::cuda {
namespace {

using S = CommState;
using E = CommEvent;
using A = CommAction;

struct Row {
  S from;
  E event;
  CommStep step;
};

constexpr Row kRows[] = {
    {S::kNone, E::kBegin, {S::kForming, A::kInit}},
    // Nothing was begun, so there is nothing to end.
    {S::kNone, E::kPeerLost, {S::kGone, A::kNothing}},
    {S::kNone, E::kRelease, {S::kGone, A::kNothing}},
    {S::kForming, E::kUp, {S::kReady, A::kNothing}},
    {S::kForming, E::kFailed, {S::kAborting, A::kAbort}},
    {S::kForming, E::kLate, {S::kAborting, A::kAbort}},
    {S::kForming, E::kPeerLost, {S::kAborting, A::kAbort}},
    {S::kForming, E::kRelease, {S::kAborting, A::kAbort}},
    {S::kReady, E::kFailed, {S::kAborting, A::kAbort}},
    {S::kReady, E::kLate, {S::kAborting, A::kAbort}},
    {S::kReady, E::kPeerLost, {S::kAborting, A::kAbort}},
    {S::kReady, E::kRelease, {S::kEnding, A::kDestroy}},
    {S::kEnding, E::kFailed, {S::kAborting, A::kAbort}},
    {S::kEnding, E::kLate, {S::kAborting, A::kAbort}},
    {S::kEnding, E::kPeerLost, {S::kAborting, A::kAbort}},
    {S::kEnding, E::kGone, {S::kGone, A::kNothing}},
    {S::kAborting, E::kGone, {S::kGone, A::kNothing}},
};

}  // namespace

std::string_view Name(CommState state) {
  switch (state) {
    case S::kNone:
      return "NONE";
    case S::kForming:
      return "FORMING";
    case S::kReady:
      return "READY";
    case S::kEnding:
      return "ENDING";
    case S::kAborting:
      return "ABORTING";
    case S::kGone:
      return "GONE";
    case S::kCount:
      break;
  }
  return "unknown";
}

std::string_view Name(CommEvent event) {
  switch (event) {
    case E::kBegin:
      return "begin";
    case E::kUp:
      return "up";
    case E::kFailed:
      return "failed";
    case E::kLate:
      return "late";
    case E::kPeerLost:
      return "peer lost";
    case E::kRelease:
      return "release";
    case E::kGone:
      return "gone";
    case E::kCount:
      break;
  }
  return "unknown";
}

std::optional<CommStep> NextStep(CommState state, CommEvent event) {
  for (const Row& row : kRows) {
    if (row.from == state && row.event == event) return row.step;
  }
  return std::nullopt;
}

CommAction CommMachine::On(CommEvent event, int num_open) {
  const bool cut_off = event == E::kRelease && num_open > 0;
  const std::optional<CommStep> step = step_(state_, cut_off ? E::kFailed : event);
  if (!step.has_value()) return A::kNothing;
  state_ = step->next;
  return step->action;
}

}  // namespace epd::cuda
