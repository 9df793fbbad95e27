#include "daemon/rpc/node_api/node_service.h"

#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_answers.h"

namespace epd {

NodeService::Unary* NodeService::GetStatus(Context* context, const v1::GetStatusRequest*,
                                           v1::GetStatusResponse* response) {
  return AnswerWithFigures(context, node_,
                           [this, response] { return FillStatus(node_, *response); });
}

grpc::ServerWriteReactor<v1::WatchGroupResponse>* NodeService::WatchGroup(
    Context*, const v1::WatchGroupRequest* request) {
  return watchers_.Watch(*request);
}

}  // namespace epd
