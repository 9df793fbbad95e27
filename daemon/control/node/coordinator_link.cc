#include "daemon/control/node/coordinator_link.h"

#include <algorithm>

namespace epd {

void CoordinatorLink::Connect(Incarnation coordinator) {
  connected_ = true;
  if (coordinator == followed_) return;
  followed_ = coordinator;
  last_view_seq_ = 0;
}

bool CoordinatorLink::Accept(const ClusterView& view) {
  const bool mine = view.node == node_ && view.node_incarnation == incarnation_;
  if (!mine || view.coordinator != followed_ || view.seq <= last_view_seq_) return false;
  last_view_seq_ = view.seq;
  if (view.report_seq == 0) return false;  // A greeting: it knows nothing of this node yet.
  reported_to_ = view.coordinator;
  return true;
}

void CoordinatorLink::Hear(Epoch epoch, Formation formation) {
  max_epoch_ = std::max(max_epoch_, epoch);
  max_formation_ = std::max(max_formation_, formation);
}

NodeReport CoordinatorLink::Begin(absl::Time now) {
  next_report_ = now + report_interval_;
  NodeReport report;
  report.node = node_;
  report.incarnation = incarnation_;
  report.seq = ++report_seq_;
  report.coordinator = reported_to_;
  report.max_epoch = max_epoch_;
  report.max_formation = max_formation_;
  return report;
}

}  // namespace epd
