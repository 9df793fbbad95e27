#include "tests/unit/daemon/worker/world/sabotage.h"

#include <algorithm>

#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

// Between an engine and its surroundings.
void World::Bend(Worker& worker, Effects& effects) {
  const auto is_answer = [](const Effect& e) {
    return std::holds_alternative<AnswerSubmission>(e);
  };
  const auto is_naming = [](const Effect& e) {
    return std::holds_alternative<NameEagerBuffers>(e);
  };
  std::erase_if(effects, [&](const Effect& e) {
    if (is_answer(e) && answered_early_.erase(std::get<AnswerSubmission>(e).submission) > 0)
      return true;
    return (Is(Sabotage::kDropAnswer) && is_answer(e) && std::get<AnswerSubmission>(e).operation &&
            Chance(5)) ||
           (Is(Sabotage::kForgetEagerBuffers) && is_naming(e) && Chance(20)) ||
           (Is(Sabotage::kKeepArenas) && std::holds_alternative<DropArenas>(e)) ||
           (Is(Sabotage::kLateRows) && std::holds_alternative<CloseWire>(e) && OneIn(4)) ||
           (Is(Sabotage::kSkipTurn) && std::holds_alternative<TakeTurn>(e) && OneIn(50)) ||
           (Is(Sabotage::kForgetCancel) && std::holds_alternative<CancelMove>(e)) ||
           (Is(Sabotage::kKeepRows) && std::holds_alternative<DropRows>(e));
  });
  if (Is(Sabotage::kAnswerUndecided))
    std::stable_partition(effects.begin(), effects.end(), is_answer);
  if (Is(Sabotage::kLateEagerBuffers))
    std::stable_partition(effects.begin(), effects.end(), std::not_fn(is_naming));
  Effects twice;
  for (Effect& effect : effects) {
    if (auto* eager = std::get_if<NameEagerBuffers>(&effect)) {
      if (Is(Sabotage::kWrongEagerBuffer)) eager->eager_buffer_of_rank[0] ^= 1;
    } else if (auto* ready = std::get_if<ReportTenantReady>(&effect)) {
      const Group* const group = FindGroup(ready->group, ready->formation);
      if (Is(Sabotage::kShareArenas) && !group->spec.tenant.empty())
        ready->set = groups[0].sets[worker.index];
    } else if (auto* land = std::get_if<LandRows>(&effect)) {
      if (Is(Sabotage::kLandAside) && OneIn(4)) land->offset ^= options_.engine.eager.buffer_bytes;
    } else if (auto* turn = std::get_if<TakeTurn>(&effect)) {
      if (Is(Sabotage::kForgetTokens) && OneIn(50)) turn->tokens_from.clear();
    } else if (auto* wire = std::get_if<OpenWire>(&effect)) {
      if (Is(Sabotage::kSharedWire) && OneIn(20)) wire->offset = 0;
    } else if (auto* answer = std::get_if<AnswerSubmission>(&effect);
               answer != nullptr && answer->operation) {
      const auto decided = worker.decided.find(answer->operation);
      if (Is(Sabotage::kFlipOutcome) && decided != worker.decided.end() && decided->second.ok() &&
          Chance(5))
        answer->status = absl::InternalError("x: y");
      if (Is(Sabotage::kOtherCause) && !answer->status.ok() && Chance(20))
        answer->status = absl::InternalError("x: another cause");
      if (Is(Sabotage::kSharedRegion))
        answer->region.offset =
            answer->region.eager.num_eager_buffers * options_.engine.eager.buffer_bytes;
      if (Is(Sabotage::kRegionInEagerBuffers)) answer->region.offset = 0;
      if (Is(Sabotage::kManyEagerBuffers) && answer->region.eager.num_eager_buffers > 0)
        answer->region.eager.num_eager_buffers = options_.engine.eager.max_buffers;
    }
    const bool again =
        (Is(Sabotage::kDoubleAnswer) && is_answer(effect) &&
         std::get<AnswerSubmission>(effect).operation && Chance(5)) ||
        (Is(Sabotage::kDecideTwice) && std::holds_alternative<DecideRecord>(effect) && Chance(20));
    if (again) twice.push_back(effect);
    twice.push_back(std::move(effect));
  }
  effects = std::move(twice);
}

// Between two workers; false: it is lost.
bool World::Bend(PeerMessage& message) {
  if (Is(Sabotage::kLoseMessage) && OneIn(50)) return false;
  if (Is(Sabotage::kForgetLeadersWord) && message.step == LeaderStep::kDecided) return false;
  if (Is(Sabotage::kForgetRowsLanded) && message.step == LeaderStep::kRowsLanded) return false;
  if (Is(Sabotage::kForgetRevoke) && message.step == LeaderStep::kRevoke) return false;
  if (Is(Sabotage::kFlipDecision) && message.step == LeaderStep::kDecided && OneIn(10)) {
    message.step = LeaderStep::kEnded;
    message.cause = absl::AbortedError("flipped");
  }
  if (Is(Sabotage::kForgetUnsynchronised)) message.unsynchronised = false;
  if (Is(Sabotage::kForgetCause) && message.step == LeaderStep::kAnnounce) message.cause = {};
  for (auto& [unused, said] : message.said) {
    if (Is(Sabotage::kForgetStreamCall)) said.from_stream = false;
    if (Is(Sabotage::kForgetDemand)) said.demand = 0;
  }
  return true;
}

}  // namespace epd::world
