#include "daemon/worker/peer_streams/peer_stream.h"

#include <utility>

#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/urgent_socket.h"

namespace epd {

std::shared_ptr<PeerStream> PeerStream::Start(StreamLoop& loop,
                                              const std::shared_ptr<grpc::Channel>& channel,
                                              grpc::ByteBuffer hello, PeerStreamObserver observer) {
  std::shared_ptr<PeerStream> stream(new PeerStream(loop, channel, std::move(observer)));
  const std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  stream->loop_.Began();
  stream->messages_.push_back(std::move(hello));
  stream->stream_ = stream->stub_.PrepareCall(&stream->context_, kWireMethod, loop.queue());
  stream->writing_ = true;  // The call itself; then the hello.
  stream->stream_->StartCall(&stream->started_);
  // The other worker never writes: this is the end of the stream, whoever ends it.
  stream->stream_->Finish(&stream->status_, &stream->finished_);
  return stream;
}

void PeerStream::Send(grpc::ByteBuffer message) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  messages_.push_back(std::move(message));
  Pump();
}

void PeerStream::Send(std::shared_ptr<OutgoingRows> rows) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  rows_.push_back(std::move(rows));
  Pump();
}

void PeerStream::Pump() {
  if (writing_ || over_ || !NextFrame()) return;
  writing_ = true;
  stream_->Write(frame_, &written_);
}

// Puts the next buffer into frame_. False: there is none.
bool PeerStream::NextFrame() {
  if (!messages_.empty()) {
    frame_ = messages_.front();  // Shares its slices.
    messages_.pop_front();
    return true;
  }
  while (!rows_.empty()) {
    const std::shared_ptr<OutgoingRows> rows = std::move(rows_.front());
    rows_.pop_front();
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = rows->Next();
    if (!next.ok()) {
      observer_.refused(*rows, next.status());
      continue;
    }
    if (!next->has_value()) continue;
    frame_ = **std::move(next);
    observer_.sent(frame_.Length());
    rows_.push_back(rows);
    return true;
  }
  return false;
}

void PeerStream::OnStarted(bool ok) {
  if (ok && loop_.carries() == Carries::kSmall) MarkUrgent(context_.peer());
  OnWritten(ok);
}

void PeerStream::OnWritten(bool ok) {
  std::shared_ptr<PeerStream> self;  // Goes after the lock.
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) Pump();
  if (is_finished_ && !writing_) self = LetGo();
}

void PeerStream::OnOver(bool) {
  std::function<void(const absl::Status&)> lost;
  absl::Status why;
  std::shared_ptr<PeerStream> self;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    is_finished_ = true;
    why = absl::UnavailableError(status_.error_message());
    lost = std::exchange(observer_.lost, nullptr);
    messages_.clear();
    rows_.clear();
    if (!writing_) self = LetGo();
  }
  if (lost) lost(why);
}

std::shared_ptr<PeerStream> PeerStream::LetGo() {
  loop_.Over();
  return std::move(self_);
}

void PeerStream::Cancel() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    observer_.lost = nullptr;
  }
  context_.TryCancel();
}

}  // namespace epd
