// What has happened on this node, in order, until control has handled it.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "daemon/control/node_control.h"
#include "daemon/control/node_state.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/loop/thread_role.h"

namespace epd {

// Owns control's state machine: nobody else hands it an event. Control thread.
class ControlQueue {
 public:
  using Perform = std::function<void(const NodeEffect&)>;

  // `role` outlives this. `perform` carries an effect out; it may push events.
  ControlQueue(const NodeOptions& options, const ThreadRole& role, Perform perform)
      : role_(role), control_(options), perform_(std::move(perform)) {}

  void Push(NodeEvent event) {
    role_.AssertHeld();
    events_.push_back(std::move(event));
  }
  bool empty() const {
    role_.AssertHeld();
    return events_.empty();
  }
  // Handles what is queued, and what that brings along, until nothing is left. The coordinator hears of several events at
  // once: a report says all that the node has, and costs as much.
  void Drain() {
    role_.AssertHeld();
    do {
      HandleEvents();
      PerformAll(control_.Report(MonotonicNow()));
    } while (!events_.empty());
  }
  // Handles what is queued and tells the coordinator nothing, which is left to Drain().
  void HandleEvents() {
    role_.AssertHeld();
    while (!events_.empty()) {
      const NodeEvent event = std::move(events_.front());
      events_.pop_front();
      changed_ = true;
      PerformAll(control_.Take(MonotonicNow(), event));
    }
  }

  // The watcher runs at the end of each turn in which something changed: ShowChanges() is that end.
  void SetWatcher(std::function<void()> watcher) {
    role_.AssertHeld();
    watcher_ = std::move(watcher);
  }
  // Something changed that was no event.
  void MarkChanged() {
    role_.AssertHeld();
    changed_ = true;
  }
  void ShowChanges() {
    role_.AssertHeld();
    if (std::exchange(changed_, false) && watcher_) watcher_();
  }

  const NodeControl& control() const { return control_; }
  // Before the first event.
  void Restore(NodeState state) { control_.Restore(std::move(state)); }

 private:
  void PerformAll(const NodeControl::Effects& effects) {
    for (const NodeEffect& effect : effects) perform_(effect);
  }

  const ThreadRole& role_;
  NodeControl control_;
  const Perform perform_;
  std::deque<NodeEvent> events_ ABSL_GUARDED_BY(role_);
  bool changed_ ABSL_GUARDED_BY(role_) = false;
  std::function<void()> watcher_ ABSL_GUARDED_BY(role_);
};

}  // namespace epd
