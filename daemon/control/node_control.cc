#include "daemon/control/node_control.h"

#include <algorithm>

#include "daemon/control/node_impl.h"

namespace epd {

NodeControl::NodeControl(const NodeOptions& options)
    : options_(options), impl_(std::make_unique<Impl>(options)) {}
NodeControl::~NodeControl() = default;

NodeControl::Effects NodeControl::Handle(absl::Time now, const NodeEvent& event) {
  return impl_->Handle(now, event);
}
absl::Time NodeControl::NextDeadline() const { return impl_->NextDeadline(); }
std::vector<SessionStatus> NodeControl::Sessions() const { return impl_->Sessions(); }
std::vector<MembershipStatus> NodeControl::Memberships() const { return impl_->Memberships(); }
std::vector<LocalGroupStatus> NodeControl::Groups() const { return impl_->Groups(); }
std::vector<WorkerStatus> NodeControl::Workers() const { return impl_->Workers(); }
bool NodeControl::coordinator_connected() const { return impl_->coordinator_connected(); }
Incarnation NodeControl::coordinator() const { return impl_->coordinator(); }
bool NodeControl::shutting_down() const { return impl_->shutting_down(); }
std::vector<std::string> NodeControl::WaitsWithoutEnd() const { return impl_->WaitsWithoutEnd(); }

NodeControl::Effects NodeControl::Impl::Handle(absl::Time now, const NodeEvent& event) {
  now_ = std::max(now_, now);
  std::visit([this](const auto& e) { On(e); }, event);
  Reconcile();
  AdvanceShutdown();
  Report();
  Effects out;
  out.swap(effects_);
  return out;
}

}  // namespace epd
