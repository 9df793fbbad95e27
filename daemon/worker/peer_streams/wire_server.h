// Takes the streams of other workers: lands their rows, hands on their messages.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/worker/peer_streams/inbox.h"
#include "daemon/worker/peer_streams/remote_regions.h"
#include "daemon/worker/peer_streams/traffic.h"

namespace epd {

// Thread-safe. Each kind has a port and threads of its own.
class WireServer {
 public:
  struct Self {
    std::string node;
    Incarnation worker;  // Streams for another one are refused,
    // ... and those of whom has no secret that was made of this one (stream_proof.h).
    std::string secret;
  };
  // The references outlive this.
  WireServer(Self self, RemoteRegions& landing, Inbox& inbox, Traffic& traffic);
  ~WireServer();

  // Returns the address with the ports that were bound: host:express,bulk.
  //   UNAVAILABLE  the address cannot be bound
  absl::StatusOr<std::string> Start(const std::string& listen,
                                    const std::shared_ptr<grpc::ServerCredentials>& credentials);

 private:
  class Stream;
  struct Door;
  absl::StatusOr<int> Open(uint32_t kind, const std::string& address,
                           const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // A peer's newest stream of a kind counts; the end of an older one is of no consequence.
  void Greeted(Stream* stream, Incarnation peer, uint32_t kind);
  void Ended(Stream* stream, Incarnation peer, uint32_t kind, const std::string& why);

  const Self self_;
  RemoteRegions& remote_regions_;
  Inbox& inbox_;
  Traffic& traffic_;
  std::mutex mutex_;
  std::map<std::pair<Incarnation, uint32_t>, Stream*> streams_;
  std::vector<std::unique_ptr<Door>> doors_;
};

}  // namespace epd
