// The streams of messages between the workers of one node: a pair of sockets for each two of them, whose ends one worker
// makes and epd passes on to the other. So whoever holds an end is the worker that epd says, nothing is to be proved, and
// messages need no other thread and no library on either side. Rows do not go here.
//
// A message arrives in order, or the stream is lost: as those by gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/core/unique_fd.h"
#include "daemon/worker/peer_streams/frames_in.h"
#include "daemon/worker/peer_streams/inbox.h"
#include "daemon/worker/peer_streams/remote_regions.h"
#include "daemon/worker/peer_streams/traffic.h"

namespace epd {

// Of one stream, in one turn of the exec thread.
inline constexpr size_t kTurnBytes = 16 << 10;

// One end of a pair, for epd to pass on.
struct NodeStreamEnd {
  Incarnation peer;
  UniqueFd socket;
};

// Exec thread only.
class NodeStreams {
 public:
  // Of worker `self` of `node`; the references outlive this.
  NodeStreams(std::string node, Incarnation self, RemoteRegions& landing, Traffic& traffic);
  NodeStreams(const NodeStreams&) = delete;
  NodeStreams& operator=(const NodeStreams&) = delete;

  // Of a worker of this node that it has no stream to. The one of both with the smaller number makes the pair.
  void Meet(Incarnation peer);
  // What a worker of this node has made for this one. It waits while an older stream to that worker has not been forgotten.
  void Adopt(Incarnation peer, UniqueFd socket);
  std::vector<NodeStreamEnd> TakeEnds() { return std::exchange(ends_, {}); }

  // It goes with the next Flush at the latest, or once there is a stream.
  void Enqueue(Incarnation peer, const grpc::ByteBuffer& message);
  void Flush(Incarnation peer);
  // Nothing is told of it any more.
  void Forget(Incarnation peer);

  //   RESOURCE_EXHAUSTED  there was no descriptor left, and no stream can be
  const absl::Status& status() const { return status_; }
  // Readable while there is something to read.
  int ready_fd() const { return epoll_.get(); }
  // What has come, behind what was found out before: of each stream as much as others can wait for, and the rest in later turns.
  std::vector<WireEvent> Take();
  // All that the peer, whose end is known, has said before it.
  std::vector<WireEvent> TakeLast(Incarnation peer);
  // Until all that was enqueued is sent, but for `most`.
  void Await(std::chrono::milliseconds most);

 private:
  struct Stream {
    UniqueFd socket;  // Invalid: the other side's end has not come.
    std::string out;  // Not sent yet, each message behind its size, 32 bits.
    uint64_t num_waiting = 0;
    bool watches_write = false;
    std::string in;  // A message that has not come as a whole.
    std::unique_ptr<FramesIn> frames;
    bool over = false;
  };

  void Connect(Incarnation peer, Stream& stream, UniqueFd socket);
  // Of all streams within this node together.
  const std::shared_ptr<NodeTraffic>& Counted();
  // Nothing of it waits any more.
  void CountNone(Stream& stream);
  void Send(Incarnation peer, Stream& stream);
  // At most so many bytes of what has come.
  void Read(Incarnation peer, Stream& stream, size_t most);
  // Takes the whole messages out of what has come.
  grpc::Status TakeMessages(Stream& stream);
  void End(Incarnation peer, Stream& stream, const std::string& why);
  absl::Status Watch(Incarnation peer, const Stream& stream, int operation);

  const std::string node_;
  const Incarnation self_;
  RemoteRegions& landing_;
  Traffic& traffic_;
  const UniqueFd epoll_;
  const absl::Status status_;
  std::shared_ptr<NodeTraffic> counted_;  // From the first stream on.
  std::map<Incarnation, Stream> streams_;
  std::map<Incarnation, UniqueFd> adopted_;  // For a stream that is still there.
  std::vector<NodeStreamEnd> ends_;
  std::vector<WireEvent> events_;
  std::vector<char> chunk_ = std::vector<char>(kTurnBytes);  // What one read brings.
};

}  // namespace epd
