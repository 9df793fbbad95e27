#include "daemon/control/node/coordinator_link.h"

#include <algorithm>

namespace epd {

void CoordinatorLink::Connect(Incarnation coordinator) {
  connected_ = true;
  why_not_.clear();
  if (coordinator == state_.followed) return;
  state_.followed = coordinator;
  state_.last_view_seq = 0;
}

void CoordinatorLink::Lose(const absl::Status& cause) {
  connected_ = false;
  why_not_ = std::string(cause.message());
}

bool CoordinatorLink::Accept(const ClusterView& view) {
  const bool mine = view.node == node_ && view.node_incarnation == incarnation_;
  if (!mine || view.coordinator != state_.followed || view.seq <= state_.last_view_seq)
    return false;
  state_.last_view_seq = view.seq;
  if (view.report_seq == 0) return false;  // A greeting: it knows nothing of this node yet.
  state_.reported_to = view.coordinator;
  return true;
}

void CoordinatorLink::Hear(Epoch epoch, Formation formation) {
  state_.max_epoch = std::max(state_.max_epoch, epoch);
  state_.max_formation = std::max(state_.max_formation, formation);
}

NodeReport CoordinatorLink::Begin(absl::Time now) {
  next_report_ = now + report_interval_;
  NodeReport report;
  report.node = node_;
  report.incarnation = incarnation_;
  report.seq = ++state_.report_seq;
  report.coordinator = state_.reported_to;
  report.max_epoch = state_.max_epoch;
  report.max_formation = state_.max_formation;
  return report;
}

}  // namespace epd
