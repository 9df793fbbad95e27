#include "absl/strings/str_cat.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_orders.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::CloseGroup(Context* context, const v1::CloseGroupRequest* request,
                                            v1::CloseGroupResponse*) {
  return AnswerLater(context, node_, [this, request](const Finish& finish) {
    const auto done = [finish](const RequestDeduplicator::Answer& answer) {
      finish(answer.status);
    };
    const std::string key =
        request->request_id().empty() ? "" : absl::StrCat("close/", request->request_id());
    const std::optional<RequestId> order = node_.orders().Begin(key, done);
    if (!order.has_value()) return;
    if (const absl::Status bad = CheckGroup(node_, request->name(), request->epoch()); !bad.ok()) {
      return node_.orders().Finish(*order, {bad, GroupId()});
    }
    const absl::StatusOr<GroupId> tenant = TenantOf(node_, *request);
    if (!tenant.ok()) return node_.orders().Finish(*order, {tenant.status(), GroupId()});
    node_.Handle(
        CloseRequested{*order, *tenant, request->name(), MonotonicNow() + absl::Seconds(10)});
  });
}

}  // namespace epd
