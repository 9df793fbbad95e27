// Goal: a member that dies when its worker has published for it, and before the leader's word has come, holds nothing: the
// operation ends for the others, and its staging comes back. The simulator of both planes found it.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/daemon/worker/world/calls.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd::world {
namespace {

using State = Call::State;

TEST(DeadMemberTest, OfAnOperationThatBecomesGoodHoldsNothing) {
  WorldOptions options{.num_workers = 2};
  options.engine = {.staging_bytes = uint64_t{1} << 20,
                    .eager = {.few_buffers = 0, .max_buffers = 0}};
  World world(options);
  Calls calls(world);
  std::vector<size_t> holding;
  std::vector<absl::Status> ended;
  calls.on_hold = [&](size_t index) { holding.push_back(index); };
  calls.on_end = [&](const Call&, const absl::Status& status) { ended.push_back(status); };
  const auto next_steps = [&] {
    for (const size_t index : std::exchange(holding, {})) {
      if (!world.calls[index].dead) calls.NextStep(index);
    }
  };

  // Rank 0 leads from another worker than those of ranks 1 and 2.
  Group group;
  group.spec = MakeSpec(3);
  group.worker_of = {0, 1, 1};
  for (uint64_t session = 1; session <= 3; ++session) group.members.emplace_back(session);
  Group& formed = world.AddGroup(std::move(group));
  world.Form(formed);
  for (uint32_t r = 0; r < 3; ++r) {
    Call call{.group = &formed,
              .formation = formed.formation,
              .rank = r,
              .session = formed.members[r],
              .program = 1,
              .identity = {formed.id, formed.formation, 1, 0, 0}};
    calls.Announce(call, MakePrepare({.group = formed.id,
                                      .epoch = Epoch(formed.epoch),
                                      .formation = Formation(formed.formation),
                                      .rank = r}));
  }
  world.DeliverEverything();
  ASSERT_EQ(holding.size(), 3u);
  next_steps();  // All publish.
  while (world.DeliverRows()) {
  }
  // The leader hears that worker 1 has published, and decides; its word is on its way.
  ASSERT_TRUE(world.DeliverMessage(1, 0));
  ASSERT_EQ(world.calls[0].state, State::kReading);
  ASSERT_EQ(world.calls[1].state, State::kPublished);

  const SessionId dead = formed.members[2];
  calls.Abandon(dead);
  world.worker(1).exchange.SessionDead(dead, absl::UnavailableError("killed"), false, world.now);
  world.Perform(world.worker(1));
  world.DeliverEverything();
  next_steps();
  EXPECT_EQ(ended, std::vector<absl::Status>(2));
  EXPECT_EQ(world.worker(1).exchange.num_open_operations(), 0u);
  EXPECT_EQ(world.worker(1).exchange.staging().pool().in_use_bytes(), 0u);
  EXPECT_FALSE(world.broken()) << world.violation().what;
}

}  // namespace
}  // namespace epd::world
