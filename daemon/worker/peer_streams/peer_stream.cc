#include "daemon/worker/peer_streams/peer_stream.h"

#include <utility>
#include <vector>

#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "daemon/worker/peer_streams/urgent_socket.h"
#include "proto/failpoint/failpoint.h"

namespace epd {

std::shared_ptr<PeerStream> PeerStream::Start(StreamLoop& loop,
                                              const std::shared_ptr<grpc::Channel>& channel,
                                              StreamHello hello, PeerStreamObserver observer) {
  std::shared_ptr<PeerStream> stream(
      new PeerStream(loop, channel, std::move(hello), std::move(observer)));
  const std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  stream->loop_.Began();
  stream->context_.AddMetadata(kHelloKey, stream->hello_.hello);
  stream->stream_ = stream->stub_.PrepareCall(&stream->context_, kWireMethod, loop.queue());
  stream->writing_ = true;  // The call itself; then what the other side's challenge asks for.
  stream->stream_->StartCall(&stream->started_);
  return stream;
}

void PeerStream::Send(const grpc::ByteBuffer& message) {
  Enqueue(message);
  Flush();
}

void PeerStream::Enqueue(const grpc::ByteBuffer& message) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  messages_.push_back(message);
  EPD_FAILPOINT_REORDER("worker.wire.order", messages_);
}

void PeerStream::Flush() {
  const std::lock_guard lock(mutex_);
  if (!over_) Pump();
}

void PeerStream::Send(std::shared_ptr<OutgoingRows> rows) {
  const std::lock_guard lock(mutex_);
  if (over_ || closing_) return;
  rows_.push_back(std::move(rows));
  Pump();
}

void PeerStream::Pump() {
  const bool idle = !writing_ && !over_;
  const bool writes = idle && NextFrame();
  CountQueued();
  if (writes) {
    writing_ = true;
    stream_->Write(frame_, &written_);
  } else if (idle && closing_) {
    writing_ = over_ = true;
    stream_->WritesDone(&written_);
  }
}

void PeerStream::CountQueued() {
  const auto count = [](uint64_t now, uint64_t& counted, std::atomic<uint64_t>& sum) {
    if (now == counted) return;
    sum.fetch_add(now - counted, std::memory_order_relaxed);  // Wraps where it falls.
    counted = now;
  };
  count(messages_.size(), counted_messages_, observer_.traffic->queued_messages);
  count(rows_.size(), counted_rows_, observer_.traffic->queued_rows);
}

// The next message, or several as one buffer: a write, its completion and what the other end does for a buffer cost more than
// what stands in one.
grpc::ByteBuffer PeerStream::JoinMessages() {
  if (messages_.size() == 1) {
    grpc::ByteBuffer message = messages_.front();
    messages_.pop_front();
    return message;
  }
  const auto word = [](uint32_t value) { return grpc::Slice(&value, sizeof value); };
  std::vector<grpc::Slice> slices = {word(static_cast<uint32_t>(FrameKind::kSeveral))};
  for (uint64_t bytes = 0; !messages_.empty() && bytes < kSeveralBytes; messages_.pop_front()) {
    const grpc::ByteBuffer& message = messages_.front();
    std::vector<grpc::Slice> parts;
    if (!message.Dump(&parts).ok()) continue;
    bytes += message.Length();
    slices.push_back(word(static_cast<uint32_t>(message.Length())));
    slices.insert(slices.end(), parts.begin(), parts.end());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Puts the next buffer into frame_. False: there is none.
bool PeerStream::NextFrame() {
  if (!messages_.empty()) {
    frame_ = JoinMessages();
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
    observer_.traffic->sent_bytes.fetch_add(frame_.Length(), std::memory_order_relaxed);
    rows_.push_back(rows);
    return true;
  }
  return false;
}

void PeerStream::OnStarted(bool ok) {
  if (ok && loop_.carries() == Carries::kSmall) MarkUrgent(context_.peer());
  const std::lock_guard lock(mutex_);
  stream_->ReadInitialMetadata(&challenged_);
}

// Also when the call has failed.
void PeerStream::OnChallenged(bool) {
  const std::lock_guard lock(mutex_);
  // The other worker writes nothing more: this is the end of the stream, whoever ends it.
  stream_->Finish(&status_, &finished_);
  writing_ = false;
  const auto& metadata = context_.GetServerInitialMetadata();
  const auto challenge = metadata.find(kChallengeKey);
  if (challenge == metadata.end()) return;  // Its end says why.
  absl::StatusOr<grpc::ByteBuffer> proof =
      hello_.prove(std::string(challenge->second.data(), challenge->second.size()));
  if (!proof.ok()) {
    disbelief_ = proof.status();
    over_ = true;
    return context_.TryCancel();
  }
  if (over_) return;
  // Alone: what stands with others in a buffer is of a stream that is believed.
  frame_ = *std::move(proof);
  writing_ = true;
  stream_->Write(frame_, &written_);
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
    why = disbelief_.ok() ? absl::UnavailableError(status_.error_message()) : disbelief_;
    lost = std::exchange(observer_.lost, nullptr);
    messages_.clear();
    rows_.clear();
    CountQueued();
    if (!writing_) self = LetGo();
  }
  if (lost) lost(why);
}

std::shared_ptr<PeerStream> PeerStream::LetGo() {
  loop_.Over();
  return std::move(self_);
}

void PeerStream::Close() {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  closing_ = true;
  observer_.lost = nullptr;
  rows_.clear();
  Pump();
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
