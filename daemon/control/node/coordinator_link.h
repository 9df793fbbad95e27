// What passes between a node and its coordinator: whom it follows, which views count, when a report
// is due.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/control/node_control.h"
#include "daemon/control/node_state.h"

namespace epd {

class CoordinatorLink {
 public:
  explicit CoordinatorLink(const NodeOptions& options)
      : node_(options.node),
        incarnation_(options.incarnation),
        report_interval_(options.report_interval) {}

  // Views of other coordinators are ignored from here on.
  void Connect(Incarnation coordinator);
  void Lose(const absl::Status& cause);
  // Whether the view is of the followed coordinator and newer than the last, and knows of this node.
  bool Accept(const ClusterView& view);
  // An epoch and a formation that a coordinator has told.
  void Hear(Epoch epoch, Formation formation);

  bool connected() const { return connected_; }
  // Why not; "": it is connected.
  const std::string& why_not() const { return why_not_; }
  Incarnation followed() const { return state_.followed; }
  Incarnation reported_to() const { return state_.reported_to; }
  uint64_t next_seq() const { return state_.report_seq + 1; }  // Of the next report.

  const LinkState& state() const { return state_; }
  // Nobody is connected then.
  void Restore(const LinkState& state) { state_ = state; }

  // When a report goes out although nothing has changed; InfiniteFuture while nobody is there.
  absl::Time next_report() const { return connected_ ? next_report_ : absl::InfiniteFuture(); }
  // The next report, without what the node's other parts know.
  NodeReport Begin(absl::Time now);

 private:
  NodeId node_;
  Incarnation incarnation_;
  absl::Duration report_interval_;
  bool connected_ = false;
  std::string why_not_ = "it cannot be reached";
  LinkState state_;
  absl::Time next_report_ = absl::InfiniteFuture();
};

}  // namespace epd
