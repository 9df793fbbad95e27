// Goal: control hears everything in order, what its effects bring along too, and whoever watches
// hears once per turn that something changed.
#include "daemon/node/control_queue.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

NodeOptions Options() {
  NodeOptions options;
  options.node = NodeId{"a"};
  options.incarnation = Incarnation(1);
  return options;
}

NodeEvent Attached(uint64_t session) {
  SessionAttached event;
  event.session = SessionId(session);
  return event;
}

TEST(ControlQueueTest, EventsWaitUntilTheyAreDrained) {
  const ThreadRole role;
  ControlQueue queue(Options(), role, [](const NodeEffect&) {});
  queue.Push(CoordinatorConnected{Incarnation(2)});
  EXPECT_FALSE(queue.empty());
  EXPECT_FALSE(queue.control().coordinator_connected());
  queue.Drain();
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.control().coordinator_connected());
}

TEST(ControlQueueTest, WhatAnEffectBringsAlongIsHandledInTheSameTurn) {
  const ThreadRole role;
  int reports = 0;
  ControlQueue* self = nullptr;
  ControlQueue queue(Options(), role, [&](const NodeEffect& effect) {
    if (!std::holds_alternative<SendReport>(effect)) return;
    if (++reports == 1) self->Push(CoordinatorLost{absl::UnavailableError("gone")});
  });
  self = &queue;
  queue.Push(CoordinatorConnected{Incarnation(2)});
  queue.Drain();
  EXPECT_GE(reports, 1);
  EXPECT_FALSE(queue.control().coordinator_connected());
}

TEST(ControlQueueTest, TheCoordinatorHearsOfManyEventsAtOnce) {
  const ThreadRole role;
  int replies = 0, reports = 0;
  ControlQueue queue(Options(), role, [&](const NodeEffect& effect) {
    replies += std::holds_alternative<ReplyFailed>(effect);
    reports += std::holds_alternative<SendReport>(effect);
  });
  queue.Push(CoordinatorConnected{Incarnation(2)});
  queue.Drain();
  reports = 0;
  for (uint64_t session = 1; session <= 20; ++session) {
    queue.Push(Attached(session));
    JoinRequested join;  // Of no group, and so refused.
    join.session = SessionId(session);
    queue.Push(join);
    queue.Push(WorkerAdded{WorkerName{static_cast<int>(session)}});
    queue.HandleEvents();
    EXPECT_EQ(replies, static_cast<int>(session)) << "an answer does not wait for the report";
  }
  EXPECT_EQ(reports, 0);
  queue.Drain();
  EXPECT_EQ(reports, 1);
  queue.Drain();
  EXPECT_EQ(reports, 1);
}

TEST(ControlQueueTest, TheWatcherRunsOncePerTurnInWhichSomethingChanged) {
  const ThreadRole role;
  ControlQueue queue(Options(), role, [](const NodeEffect&) {});
  int shown = 0;
  queue.SetWatcher([&] { ++shown; });
  queue.ShowChanges();
  EXPECT_EQ(shown, 0);
  queue.Push(Attached(1));
  queue.Push(Attached(2));
  queue.Drain();
  queue.ShowChanges();
  queue.ShowChanges();
  EXPECT_EQ(shown, 1);
  queue.MarkChanged();
  queue.ShowChanges();
  EXPECT_EQ(shown, 2);
}

}  // namespace
}  // namespace epd
