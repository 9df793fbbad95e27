#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/codec.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_orders.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {
namespace {

constexpr absl::Duration kAnswerWithin = absl::Seconds(10);

GroupId RandomGroupId() {
  std::random_device device;
  return GroupId((uint64_t{device()} << 32 | device()) | 1);
}

}  // namespace

NodeService::Unary* NodeService::CreateGroup(Context* context,
                                             const v1::CreateGroupRequest* request,
                                             v1::CreateGroupResponse* response) {
  return AnswerLater(context, node_, [this, request, response](const Finish& finish) {
    absl::StatusOr<GroupSpec> spec = FromProto(request->spec(), node_.spec_defaults());
    absl::Status bad = spec.status();
    if (bad.ok()) bad = Validate(*spec);
    if (bad.ok()) bad = CheckServed(*spec);
    if (!bad.ok()) return finish(bad);
    const std::string name = spec->name;
    const auto done = [this, response, finish, name](const RequestDeduplicator::Answer& answer) {
      if (answer.status.ok()) *response->mutable_group() = GroupOrClosed(node_, answer.group, name);
      finish(answer.status);
    };
    const std::string key =
        request->request_id().empty() ? "" : absl::StrCat("create/", request->request_id());
    const std::optional<RequestId> order = node_.orders().Begin(key, done);
    if (!order.has_value()) return;
    node_.Handle(
        CreateRequested{*order, *std::move(spec), RandomGroupId(), MonotonicNow() + kAnswerWithin});
  });
}

}  // namespace epd
