// The steps of a CPU's call: it announces, stages, publishes, reads and lets go; and what the invariants are told of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

// Who calls, and when each step is taken, is decided by somebody else (callers.h; tests/sim/data_plane.h).
class Calls {
 public:
  // Answers of `world` are taken from here on.
  explicit Calls(World& world);

  uint32_t NextClaim() { return ++claim_; }
  // `request` is what the call says; its rows stand in eager buffers where they fit and are free.
  void Announce(Call call, shm::SlotRequest request);
  // The next step of a call that holds staging.
  void NextStep(size_t index);
  // Ends a call whose worker does not: epd answers for a dead one.
  void End(size_t index, const absl::Status& status);
  // The session's calls, of which nobody waits for an end any more.
  void Abandon(SessionId session);
  // Running calls of groups and tenants in which the session is not.
  std::vector<size_t> CallsWithout(SessionId session) const;

  // A call has ended; its state and the world say so already.
  std::function<void(const Call&, const absl::Status&)> on_end = [](const auto&, const auto&) {};
  // A call holds staging: NextStep is to follow.
  std::function<void(size_t index)> on_hold = [](size_t) {};

 private:
  // As many in a row as the call's rows need.
  std::optional<uint8_t> FreeEagerBuffers(const Call& call) const;
  void Answered(Worker& worker, const AnswerSubmission& answer);
  void TakeRegion(Worker& worker, size_t index, const AnswerSubmission& answer);

  World& w_;
  uint32_t claim_ = 1;
  std::map<std::pair<int, ArenaSetId>, uint32_t> num_eager_;  // By worker, as replies told.
};

}  // namespace epd::world
