#include "daemon/rpc/node_service.h"

namespace epd {

grpc::ServerWriteReactor<v1::WatchGroupResponse>* NodeService::WatchGroup(
    Context*, const v1::WatchGroupRequest* request) {
  return watchers_.Watch(*request);
}

}  // namespace epd
