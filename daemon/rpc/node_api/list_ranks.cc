#include <utility>

#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::ListRanks(Context* context, const v1::ListRanksRequest* request,
                                           v1::ListRanksResponse* response) {
  return AnswerWithFigures(context, node_, [this, request, response]() -> absl::Status {
    bool found = request->group().empty();
    for (const GroupStatus& group : KnownGroups(node_)) {
      if (!request->group().empty() && request->group() != group.spec.name) continue;
      found = true;
      for (v1::Rank& rank : DescribeRanks(node_, group)) *response->add_ranks() = std::move(rank);
    }
    return found ? absl::OkStatus() : NoSuchGroup(node_, request->group());
  });
}

}  // namespace epd
