// Goal: whatever dies, fails, comes late or is released, in whatever order, every survivor leaves the
// communicator, nobody destroys one whose peer it knows to be lost, and nobody issues into it.
#include "daemon/backend/cuda/members/communicator_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace epd::cuda {
namespace {

using S = CommState;
using E = CommEvent;
using A = CommAction;

constexpr int kRanks = 3;

// All ranks of one communicator and what surrounds them; the walk visits every state once.
struct World {
  struct Rank {
    S state = S::kNone;
    bool alive = true;
    bool told = false;  // That somebody is dead.
    bool entered = false;
    bool finalized = false;
    int open = 0;

    auto operator<=>(const Rank&) const = default;
  };
  std::array<Rank, kRanks> ranks;
  bool released = false;  // The group has said that it needs the communicator no more.

  auto operator<=>(const World&) const = default;

  bool AnyDead() const {
    for (const Rank& rank : ranks) {
      if (!rank.alive) return true;
    }
    return false;
  }
  bool AllEntered() const {
    for (const Rank& rank : ranks) {
      if (!rank.entered) return false;
    }
    return true;
  }
  // NCCL notices that a connection is gone.
  bool Broken() const {
    for (const Rank& rank : ranks) {
      if (!rank.alive || rank.state == S::kAborting || (rank.state == S::kGone && !rank.finalized))
        return true;
    }
    return false;
  }
  bool AllFinalized() const {
    for (const Rank& rank : ranks) {
      if (!rank.finalized) return false;
    }
    return true;
  }
};

class Walk {
 public:
  explicit Walk(StepFunction step) : step_(step) {}

  std::set<std::string> Run() {
    Visit(World{});
    return complaints_;
  }
  size_t num_states() const { return seen_.size(); }

 private:
  void Visit(const World& world) {
    if (!seen_.insert(world).second) return;
    Check(world);
    bool any = false;
    for (int i = 0; i < kRanks; ++i) any |= VisitRank(world, i);
    if (!world.released && !world.AnyDead() && world.AllEntered()) {
      World next = world;
      next.released = true;
      Visit(next);
    }
    if (any) return;
    for (const World::Rank& rank : world.ranks) {
      if (rank.alive && rank.state != S::kGone && rank.state != S::kReady) {
        complaints_.insert("a rank is left for ever in " + std::string(Name(rank.state)));
      }
    }
  }

  // True: something can still happen to rank `i`, without which the world stands still.
  bool VisitRank(const World& world, int i) {
    const World::Rank& rank = world.ranks[i];
    if (!rank.alive) return false;
    bool moves = false;
    const auto send = [&](E event) { moves |= Send(world, i, event); };
    if (!world.AnyDead()) {
      World next = world;
      next.ranks[i].alive = false;
      Visit(next);
    }
    if (rank.state == S::kNone && !world.released) send(E::kBegin);
    if (rank.state == S::kForming && world.AllEntered() && !world.Broken()) send(E::kUp);
    if (world.AnyDead() && !rank.told) {
      World next = world;
      next.ranks[i].told = true;
      moves |= Send(next, i, E::kPeerLost);
    }
    const bool connected =
        rank.state == S::kForming || rank.state == S::kReady || rank.state == S::kEnding;
    if (connected && world.Broken()) send(E::kFailed);
    if (rank.state == S::kForming || (rank.state == S::kEnding && !world.AllFinalized()) ||
        (rank.state == S::kReady && rank.open > 0 && world.Broken())) {
      send(E::kLate);
    }
    if (world.released) send(E::kRelease);
    if (rank.state == S::kAborting || (rank.state == S::kEnding && world.AllFinalized()))
      send(E::kGone);
    if (rank.state == S::kReady && rank.open == 0) {
      World next = world;
      next.ranks[i].open = 1;
      Visit(next);
    }
    if (rank.state == S::kReady && rank.open > 0 && !world.Broken()) {
      World next = world;
      next.ranks[i].open = 0;
      moves = true;
      Visit(next);
    }
    return moves;
  }

  bool Send(World world, int i, E event) {
    World::Rank& rank = world.ranks[i];
    const World before = world;
    CommMachine machine(step_);
    Restore(machine, rank.state);
    const A action = machine.On(event, rank.open);
    rank.state = machine.state();
    if (action == A::kInit) rank.entered = true;
    if (action == A::kDestroy) {
      rank.finalized = true;
      if (rank.told) complaints_.insert("destroyed with a peer that is known to be lost");
      if (rank.open > 0) complaints_.insert("destroyed with an open operation");
    }
    if (action == A::kAbort) {
      rank.open = 0;
      rank.finalized = false;
    }
    Visit(world);
    return world != before;
  }

  // Brings a fresh machine into `state` by a way that the table allows.
  static void Restore(CommMachine& machine, S state) {
    static const std::map<S, std::vector<E>> kWays = {
        {S::kNone, {}},
        {S::kForming, {E::kBegin}},
        {S::kReady, {E::kBegin, E::kUp}},
        {S::kEnding, {E::kBegin, E::kUp, E::kRelease}},
        {S::kAborting, {E::kBegin, E::kFailed}},
        {S::kGone, {E::kBegin, E::kFailed, E::kGone}}};
    for (const E event : kWays.at(state)) machine.On(event);
  }

  void Check(const World& world) {
    for (const World::Rank& rank : world.ranks) {
      if (!rank.alive || !rank.told) continue;
      if (rank.state != S::kAborting && rank.state != S::kGone) {
        complaints_.insert("a rank that knows of the loss stays in " +
                           std::string(Name(rank.state)));
      }
    }
  }

  StepFunction step_;
  std::set<World> seen_;
  std::set<std::string> complaints_;
};

TEST(CommMachine, EveryOrderOfEventsOfThreeRanksEndsWell) {
  Walk walk(&NextStep);
  EXPECT_THAT(walk.Run(), ::testing::IsEmpty());
  EXPECT_GT(walk.num_states(), 1000u);
}

TEST(CommMachine, TheWalkFindsATableThatForgetsALossWhileItEnds) {
  Walk walk(+[](S state, E event) -> std::optional<CommStep> {
    if (state == S::kEnding && event == E::kPeerLost) return std::nullopt;
    return NextStep(state, event);
  });
  EXPECT_THAT(walk.Run(), ::testing::Contains("a rank that knows of the loss stays in ENDING"));
}

TEST(CommMachine, TheWalkFindsATableThatDestroysInsteadOfAborting) {
  Walk walk(+[](S state, E event) -> std::optional<CommStep> {
    if (state == S::kReady && event == E::kPeerLost) return CommStep{S::kEnding, A::kDestroy};
    return NextStep(state, event);
  });
  EXPECT_THAT(walk.Run(), ::testing::Contains("destroyed with a peer that is known to be lost"));
}

TEST(CommMachine, TheWalkFindsATableWithoutADeadlineForForming) {
  Walk walk(+[](S state, E event) -> std::optional<CommStep> {
    if (state == S::kForming && (event == E::kLate || event == E::kFailed)) return std::nullopt;
    if (state == S::kForming && event == E::kRelease) return std::nullopt;
    if (state == S::kForming && event == E::kPeerLost) return std::nullopt;
    return NextStep(state, event);
  });
  EXPECT_THAT(walk.Run(), ::testing::Contains("a rank is left for ever in FORMING"));
}

TEST(CommMachine, WhatIsOpenIsAbortedAndNotDestroyed) {
  CommMachine idle;
  CommMachine busy;
  for (CommMachine* machine : {&idle, &busy}) {
    EXPECT_EQ(machine->On(E::kBegin), A::kInit);
    EXPECT_EQ(machine->On(E::kUp), A::kNothing);
    EXPECT_TRUE(machine->may_issue());
  }
  EXPECT_EQ(idle.On(E::kRelease, 0), A::kDestroy);
  EXPECT_EQ(busy.On(E::kRelease, 1), A::kAbort);
  EXPECT_FALSE(idle.may_issue());
}

// Every pair of state and event is either in the table, or changes nothing and asks for nothing.
TEST(CommMachine, EventsWithoutAPlaceChangeNothing) {
  int num_rows = 0;
  for (int s = 0; s < static_cast<int>(S::kCount); ++s) {
    for (int e = 0; e < static_cast<int>(E::kCount); ++e) {
      const auto step = NextStep(static_cast<S>(s), static_cast<E>(e));
      num_rows += step.has_value();
      EXPECT_FALSE(static_cast<S>(s) == S::kGone && step.has_value()) << "GONE is final";
      EXPECT_NE(Name(static_cast<E>(e)), "unknown");
    }
    EXPECT_NE(Name(static_cast<S>(s)), "unknown");
  }
  EXPECT_EQ(num_rows, 17);
}

}  // namespace
}  // namespace epd::cuda
