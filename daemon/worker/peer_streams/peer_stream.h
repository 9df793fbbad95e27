// One stream from this worker to another one, and what waits to be sent on it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/worker/peer_streams/outgoing_rows.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/traffic.h"

namespace epd {

// How a stream begins: with `hello` in the call's metadata; `prove` makes of what the other end answers the first
// buffer, or says why the other end is not believed.
struct StreamHello {
  std::string hello;
  std::function<absl::StatusOr<grpc::ByteBuffer>(const std::string& challenge)> prove;
};

// Told on the loop's threads.
struct PeerStreamObserver {
  std::function<void(const absl::Status&)> lost;  // Once.
  std::function<void(const OutgoingRows&, const absl::Status&)> refused;
  std::shared_ptr<NodeTraffic> traffic;  // Where what is sent, and what waits, is counted.
};

// Deletes itself when its stream is over; whoever holds it calls Cancel(), or first Close(), and forgets it. Messages go
// before rows, those that wait together in one buffer; rows of several operations take turns, a frame each.
class PeerStream {
 public:
  // `loop` outlives the stream.
  static std::shared_ptr<PeerStream> Start(StreamLoop& loop,
                                           const std::shared_ptr<grpc::Channel>& channel,
                                           StreamHello hello, PeerStreamObserver observer);

  void Send(const grpc::ByteBuffer& message);
  // It goes with the next Flush at the latest.
  void Enqueue(const grpc::ByteBuffer& message);
  void Flush();
  void Send(std::shared_ptr<OutgoingRows> rows);
  // Ends the stream behind the messages that wait; rows that wait are left out, and nothing is told any more.
  void Close();
  // Ends the stream; nothing is told any more.
  void Cancel();

 private:
  using Event = MethodEvent<PeerStream>;

  PeerStream(StreamLoop& loop, const std::shared_ptr<grpc::Channel>& channel, StreamHello hello,
             PeerStreamObserver observer)
      : loop_(loop), stub_(channel), hello_(std::move(hello)), observer_(std::move(observer)) {}
  void OnStarted(bool ok);
  void OnChallenged(bool ok);
  void OnWritten(bool ok);
  void OnOver(bool ok);
  // Starts the next write, unless one is under way.
  void Pump();
  bool NextFrame();
  grpc::ByteBuffer JoinMessages();
  // Says how many wait, after each change.
  void CountQueued();
  // Nothing is under way any more: this is to be dropped, without the lock.
  std::shared_ptr<PeerStream> LetGo();

  StreamLoop& loop_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const StreamHello hello_;
  PeerStreamObserver observer_;
  Event started_{this, &PeerStream::OnStarted};
  Event challenged_{this, &PeerStream::OnChallenged};
  Event written_{this, &PeerStream::OnWritten};
  Event finished_{this, &PeerStream::OnOver};

  std::mutex mutex_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;     // Of the stream, once it is over.
  absl::Status disbelief_;  // Why this side has ended it.
  bool writing_ = false;
  bool closing_ = false;
  bool over_ = false;
  bool is_finished_ = false;
  std::shared_ptr<PeerStream> self_;  // Until it is over and no write is under way.
  grpc::ByteBuffer frame_;            // Being written.
  std::deque<grpc::ByteBuffer> messages_;
  std::deque<std::shared_ptr<OutgoingRows>> rows_;
  uint64_t counted_messages_ = 0;  // What of the traffic's counts is this stream's.
  uint64_t counted_rows_ = 0;
};

}  // namespace epd
