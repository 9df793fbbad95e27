// One stream from this worker to another one, and what waits to be sent on it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <variant>

#include "absl/status/status.h"
#include "daemon/worker/wire/outgoing_rows.h"

namespace epd {

// Told on gRPC's threads.
struct LaneObserver {
  std::function<void(const absl::Status&)> lost;  // Once.
  std::function<void(const OutgoingRows&, const absl::Status&)> refused;
  std::function<void(uint64_t bytes)> sent;  // Rows, with their frames.
};

// Deletes itself when its stream is over; whoever holds it calls Cancel() and forgets it. Messages go
// before rows; rows of several operations take turns, a frame each.
class Lane : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static std::shared_ptr<Lane> Start(const std::shared_ptr<grpc::Channel>& channel,
                                     grpc::ByteBuffer hello, LaneObserver observer);

  void Send(grpc::ByteBuffer message);
  void Send(std::shared_ptr<OutgoingRows> rows);
  // Ends the stream; nothing is told any more.
  void Cancel();

 private:
  Lane(const std::shared_ptr<grpc::Channel>& channel, LaneObserver observer)
      : stub_(channel), observer_(std::move(observer)) {}
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  // Starts the next write, unless one is under way.
  void Pump();
  bool NextFrame();

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  LaneObserver observer_;
  std::shared_ptr<Lane> self_;  // Until OnDone.
  grpc::ByteBuffer unread_;     // The other side says nothing on this stream.

  std::mutex mutex_;
  bool writing_ = false;
  bool over_ = false;
  grpc::ByteBuffer frame_;  // Being written.
  std::deque<grpc::ByteBuffer> messages_;
  std::deque<std::shared_ptr<OutgoingRows>> rows_;
};

}  // namespace epd
