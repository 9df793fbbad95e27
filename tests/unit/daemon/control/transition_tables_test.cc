// Goal: every (state, event) of every table is what it is meant to be; what is not listed here is
// illegal.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "daemon/control/group_state.h"
#include "daemon/control/membership_state.h"

namespace epd {
namespace {

template <typename State, typename Event>
void ExpectTable(const TransitionTable<State, Event>& table,
                 const std::map<std::pair<State, Event>, State>& legal) {
  size_t found = 0;
  for (int s = 0; s < static_cast<int>(State::kCount); ++s) {
    for (int e = 0; e < static_cast<int>(Event::kCount); ++e) {
      const auto next = table.Next(static_cast<State>(s), static_cast<Event>(e));
      const auto expected = legal.find({static_cast<State>(s), static_cast<Event>(e)});
      ASSERT_EQ(next.has_value(), expected != legal.end()) << "state " << s << " event " << e;
      if (!next.has_value()) continue;
      ++found;
      EXPECT_EQ(static_cast<int>(*next), static_cast<int>(expected->second))
          << "state " << s << " event " << e;
    }
  }
  EXPECT_EQ(found, legal.size());
}

TEST(TransitionTablesTest, Group) {
  using S = GroupState;
  using E = GroupEvent;
  std::map<std::pair<S, E>, S> legal = {
      {{S::kForming, E::kComplete}, S::kBootstrapping},
      {{S::kForming, E::kRankLost}, S::kForming},
      {{S::kForming, E::kRecovered}, S::kReforming},
      {{S::kBootstrapping, E::kServing}, S::kReady},
      {{S::kBootstrapping, E::kRankLost}, S::kForming},
      {{S::kBootstrapping, E::kWorkerLost}, S::kBootstrapping},
      {{S::kReady, E::kRankLost}, S::kDegraded},
      {{S::kReady, E::kWorkerLost}, S::kReforming},
      {{S::kReady, E::kRecount}, S::kReforming},
      {{S::kReady, E::kDrain}, S::kDraining},
      {{S::kDegraded, E::kComplete}, S::kReforming},
      {{S::kDegraded, E::kRankLost}, S::kDegraded},
      {{S::kReforming, E::kServing}, S::kReady},
      {{S::kReforming, E::kRankLost}, S::kDegraded},
      {{S::kReforming, E::kWorkerLost}, S::kReforming},
      {{S::kReforming, E::kRecount}, S::kReforming},
      {{S::kDraining, E::kRankLost}, S::kDraining},
      {{S::kDraining, E::kDrain}, S::kDraining},
  };
  for (const S s :
       {S::kForming, S::kBootstrapping, S::kReady, S::kDegraded, S::kReforming, S::kDraining}) {
    legal[{s, E::kFail}] = S::kClosed;
    legal[{s, E::kClose}] = S::kClosed;
    legal[{s, E::kEmptied}] = S::kForming;
  }
  ExpectTable(kGroupTransitions, legal);
}

TEST(TransitionTablesTest, Membership) {
  using S = MembershipState;
  using E = MembershipEvent;
  std::map<std::pair<S, E>, S> legal = {
      {{S::kWaiting, E::kServing}, S::kJoined},   {{S::kJoined, E::kReform}, S::kNotified},
      {{S::kNotified, E::kReform}, S::kNotified}, {{S::kNotified, E::kDrained}, S::kDrained},
      {{S::kDrained, E::kServing}, S::kJoined},   {{S::kDrained, E::kReform}, S::kDrained},
      {{S::kDrained, E::kDrained}, S::kDrained},
  };
  for (const S s : {S::kWaiting, S::kJoined, S::kNotified, S::kDrained}) {
    for (const E e : {E::kLeave, E::kGone, E::kFail}) legal[{s, e}] = S::kReleased;
  }
  ExpectTable(kMembershipTransitions, legal);
}

TEST(TransitionTablesTest, Session) {
  using S = SessionState;
  using E = SessionEvent;
  ExpectTable<S, E>(kSessionTransitions, {{{S::kAttached, E::kEnd}, S::kEnding},
                                          {{S::kAttached, E::kGone}, S::kGone},
                                          {{S::kEnding, E::kGone}, S::kGone}});
}

TEST(TransitionTablesTest, Worker) {
  using S = WorkerState;
  using E = WorkerEvent;
  ExpectTable<S, E>(kWorkerTransitions, {{{S::kDown, E::kStarted}, S::kUp},
                                         {{S::kDown, E::kDied}, S::kDown},
                                         {{S::kUp, E::kDied}, S::kDown}});
}

TEST(TransitionTablesTest, NamesAreThoseOfTheDesign) {
  EXPECT_EQ(Name(GroupState::kReforming), "RE_FORMING");
  EXPECT_EQ(Name(GroupEvent::kRankLost), "rank_lost");
  EXPECT_EQ(Name(MembershipState::kDrained), "drained");
  EXPECT_EQ(Name(SessionState::kEnding), "ending");
  EXPECT_EQ(Name(WorkerState::kUp), "up");
}

}  // namespace
}  // namespace epd
