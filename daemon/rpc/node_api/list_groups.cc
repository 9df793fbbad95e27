#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::ListGroups(Context* context, const v1::ListGroupsRequest* request,
                                            v1::ListGroupsResponse* response) {
  return AnswerWithFigures(context, node_, [this, request, response]() -> absl::Status {
    for (const GroupStatus& group : KnownGroups(node_)) {
      if (request->name().empty() || request->name() == group.spec.name) {
        *response->add_groups() = DescribeGroup(node_, group);
      }
    }
    if (!request->name().empty() && response->groups().empty())
      return NoSuchGroup(node_, request->name());
    return absl::OkStatus();
  });
}

}  // namespace epd
