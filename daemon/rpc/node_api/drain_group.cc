#include "absl/strings/str_cat.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_orders.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::DrainGroup(Context* context, const v1::DrainGroupRequest* request,
                                            v1::DrainGroupResponse* response) {
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    const auto done = [this, request, response, finish](const RequestDeduplicator::Answer& answer) {
      *response->mutable_group() = GroupOrClosed(node_, answer.group, request->name());
      finish(answer.status);
    };
    const std::string key =
        request->request_id().empty() ? "" : absl::StrCat("drain/", request->request_id());
    const std::optional<RequestId> order = node_.orders().Begin(key, done);
    if (!order.has_value()) return;
    if (const absl::Status bad = CheckGroup(node_, request->name(), request->epoch()); !bad.ok()) {
      return node_.orders().Finish(*order, {bad, GroupId()});
    }
    const absl::StatusOr<GroupId> tenant = TenantOf(node_, *request);
    if (!tenant.ok()) return node_.orders().Finish(*order, {tenant.status(), GroupId()});
    node_.Handle(DrainRequested{
        *order, *tenant, request->name(),
        OrderDeadline(request->has_deadline(), request->deadline(), absl::Seconds(30))});
  });
}

}  // namespace epd
