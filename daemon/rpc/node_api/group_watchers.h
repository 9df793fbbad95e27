// The open WatchGroup streams.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

class GroupWatch;

// Sends every watched group when it has changed. A reader that is slow skips intermediate states
// and always gets the newest. No thread is held by a stream.
class GroupWatchers {
 public:
  // `node` outlives this.
  explicit GroupWatchers(Node& node);
  ~GroupWatchers();

  // `by`: who asks, for messages (UnixCallers::Describe). Any thread.
  //   RESOURCE_EXHAUSTED  as many streams are open as there may be: names limit and holders
  grpc::ServerWriteReactor<v1::WatchGroupResponse>* Watch(const v1::WatchGroupRequest& request,
                                                          const std::string& by);

  // Control thread: compares and sends.
  void Update();
  // Control thread: ends all streams.
  void FinishAll(const absl::Status& status);

 private:
  void Begin(const std::shared_ptr<GroupWatch>& watch);
  absl::Status CheckRoom() const;
  void UpdateOne(GroupWatch& watch);

  Node& node_;
  std::vector<std::shared_ptr<GroupWatch>> watches_;  // Control thread.
};

}  // namespace epd
