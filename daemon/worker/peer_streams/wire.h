// The streams between this worker and those of other nodes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/tls/credentials.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/peer_streams/held_rows.h"
#include "daemon/worker/peer_streams/inbox.h"
#include "daemon/worker/peer_streams/node_streams.h"
#include "daemon/worker/peer_streams/outgoing_rows.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/peer_stream.h"
#include "daemon/worker/peer_streams/remote_regions.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/task_thread.h"
#include "daemon/worker/peer_streams/traffic.h"
#include "daemon/worker/peer_streams/wire_server.h"

namespace epd {

// A published stage, with what the wire must know of the group.
struct StageToSend {
  PublishedStage stage;
  std::vector<int32_t> expert_owner;  // Empty: contiguous blocks.
};
// ... and where it goes.
struct RowsToSend : StageToSend {
  PeerOperation operation;
  std::map<Incarnation, std::vector<Rank>> destinations;
};

// Two streams to each worker, so that small operations do not wait behind large ones: one for
// messages and small rows, one for large rows. Messages to workers of this node go by sockets of their own (node_streams.h).
// Exec thread only.
class Wire {
 public:
  struct Options {
    std::string node;
    Incarnation self;
    TlsFiles tls;        // None: plain.
    std::string secret;  // Of which those who call this worker have theirs; stream_proof.h.
    // Somebody passes on what TakeEnds() has, and brings Adopt() what others have made. Without: all streams go by gRPC.
    bool passes_ends = false;
  };
  explicit Wire(Options options);
  // What was sent is heard by every peer that answers within half a second, before it sees the end of a stream.
  ~Wire();

  // Takes streams at `listen`, host:port, and those of large rows at the port behind it, or any if
  // the port is 0. Returns the address for other nodes, host:port,port, with the host `advertise`
  // unless that is empty.
  //   UNAVAILABLE         it cannot be bound
  //   RESOURCE_EXHAUSTED  threads
  absl::StatusOr<std::string> Listen(const std::string& listen, const std::string& advertise);

  // Connects to those that it is not connected with.
  void Meet(const std::vector<PeerWorker>& nodes);
  // Ends of streams that Meet() has made, for workers of this node.
  std::vector<NodeStreamEnd> TakeEnds() { return node_streams_.TakeEnds(); }
  void Adopt(Incarnation peer, UniqueFd end) { node_streams_.Adopt(peer, std::move(end)); }
  void Send(Incarnation peer, const PeerMessage& message);
  // The same with what of the stage `destinations` get; it is copied.
  //   DATA_LOSS  the stage is damaged
  absl::Status SendAhead(Incarnation peer, const PeerMessage& message, const StageToSend& stage,
                         const std::vector<Rank>& destinations);
  // From now on messages wait for Flush(), so that they go together.
  void Cork() { corked_ = true; }
  void Flush();
  // Rows may be read from the stage until Close().
  void Send(RowsToSend rows);
  // Rows may be written to `regions` until Close().
  void Open(const PeerOperation& operation, uint64_t bytes, std::map<Rank, RemoteRegion> regions);
  void Close(const PeerOperation& operation);

  // Rows that came with a message are held until one of the others.
  void Hold(const RowsName& name, HeldRows rows) { held_rows_[name] = std::move(rows); }
  void Land(const RowsName& name, char* eager_buffer);
  void Drop(const RowsName& name) { held_rows_.erase(name); }

  // What has come; nothing, if nothing has.
  std::vector<WireEvent> Take();
  //   RESOURCE_EXHAUSTED  there was no descriptor for ready_fds(), and nothing that comes is seen
  absl::Status status() const {
    return inbox_->status().ok() ? node_streams_.status() : inbox_->status();
  }
  // Readable when something has come: the first once, the second for as long as it has not been taken.
  std::array<int, 2> ready_fds() const { return {inbox_->wakeup_fd(), node_streams_.ready_fd()}; }
  Inbox& inbox() { return *inbox_; }
  // The peer's streams are lost: the next Meet() makes new ones.
  void Forget(Incarnation peer);
  const Traffic& traffic() const { return *traffic_; }

 private:
  struct Peer {
    std::shared_ptr<PeerStream> express;  // Null: of this node, by node_streams_.
    std::shared_ptr<PeerStream> bulk;
    std::shared_ptr<NodeTraffic> traffic;
    LastSubject said = {};  // Last, on the express stream.
  };
  absl::Status StartThreads();
  std::shared_ptr<PeerStream> Connect(const PeerWorker& node, uint32_t kind);

  void Post(Incarnation id, Peer& peer, const grpc::ByteBuffer& message);
  void Flush(Incarnation id, Peer& peer);
  OnRefusedPeer TellRefused() const;

  const Options options_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();  // gRPC's threads hold it, too.
  const std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  RemoteRegions remote_regions_;
  NodeStreams node_streams_;
  std::map<PeerOperation, std::shared_ptr<StageGate>> gates_;
  std::map<Incarnation, Peer> peers_;
  std::map<RowsName, HeldRows> held_rows_;
  bool corked_ = false;
  std::vector<Incarnation> unflushed_;
  StreamLoop express_loop_;
  StreamLoop bulk_loop_;
  WireServer server_;
  TaskThread task_thread_;  // Large rows are cut to size there.
  absl::Status has_threads_;
};

}  // namespace epd
