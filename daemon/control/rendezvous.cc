#include "daemon/control/rendezvous.h"

#include "daemon/control/rendezvous_impl.h"

namespace epd {

Rendezvous::Rendezvous(const RendezvousOptions& options)
    : options_(options), impl_(std::make_unique<Impl>(options)) {}
Rendezvous::~Rendezvous() = default;

Rendezvous::Effects Rendezvous::OnNodeConnected(absl::Time now, const NodeId& node,
                                                Incarnation incarnation, const NodeLink& link) {
  return impl_->OnNodeConnected(now, node, incarnation, link);
}
Rendezvous::Effects Rendezvous::OnReport(absl::Time now, const NodeReport& report) {
  return impl_->OnReports(now, {report});
}
Rendezvous::Effects Rendezvous::OnReports(absl::Time now, const std::vector<NodeReport>& reports) {
  return impl_->OnReports(now, reports);
}
Rendezvous::Effects Rendezvous::OnNodeLost(absl::Time now, const NodeId& node,
                                           const absl::Status& cause) {
  return impl_->OnNodeLost(now, node, cause);
}
Rendezvous::Effects Rendezvous::OnKept(absl::Time now, const std::vector<PersistentGroup>& kept) {
  return impl_->OnKept(now, kept);
}
Rendezvous::Effects Rendezvous::OnTick(absl::Time now) { return impl_->OnTick(now); }
absl::Time Rendezvous::NextDeadline() const { return impl_->NextDeadline(); }
std::vector<GroupStatus> Rendezvous::Groups() const { return impl_->Groups(); }
std::vector<GroupSummary> Rendezvous::Summaries() const { return impl_->Summaries(); }
std::vector<PersistentGroup> Rendezvous::Persistent() const { return impl_->Persistent(); }
std::vector<NodeStatus> Rendezvous::Nodes() const { return impl_->Nodes(); }
const FormationReport* Rendezvous::LastReport(const std::string& name) const {
  return impl_->LastReport(name);
}
Epoch Rendezvous::max_epoch() const { return impl_->max_epoch(); }
std::vector<std::string> Rendezvous::WaitsWithoutEnd() const { return impl_->WaitsWithoutEnd(); }

}  // namespace epd
