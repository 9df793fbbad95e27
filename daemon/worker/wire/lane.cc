#include "daemon/worker/wire/lane.h"

#include <utility>

#include "daemon/worker/wire/frame.h"
#include "daemon/worker/wire/urgent_socket.h"

namespace epd {

std::shared_ptr<Lane> Lane::Start(LaneLoop& loop, const std::shared_ptr<grpc::Channel>& channel,
                                  grpc::ByteBuffer hello, LaneObserver observer) {
  std::shared_ptr<Lane> lane(new Lane(loop, channel, std::move(observer)));
  const std::lock_guard lock(lane->mutex_);
  lane->self_ = lane;
  lane->loop_.Began();
  lane->messages_.push_back(std::move(hello));
  lane->stream_ = lane->stub_.PrepareCall(&lane->context_, kWireMethod, loop.queue());
  lane->writing_ = true;  // The call itself; then the hello.
  lane->stream_->StartCall(&lane->started_);
  // The other worker never writes: this is the end of the stream, whoever ends it.
  lane->stream_->Finish(&lane->status_, &lane->finished_);
  return lane;
}

void Lane::Send(grpc::ByteBuffer message) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  messages_.push_back(std::move(message));
  Pump();
}

void Lane::Send(std::shared_ptr<OutgoingRows> rows) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  rows_.push_back(std::move(rows));
  Pump();
}

void Lane::Pump() {
  if (writing_ || over_ || !NextFrame()) return;
  writing_ = true;
  stream_->Write(frame_, &written_);
}

// Puts the next buffer into frame_. False: there is none.
bool Lane::NextFrame() {
  if (!messages_.empty()) {
    frame_ = std::move(messages_.front());
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

void Lane::OnStarted(bool ok) {
  if (ok && loop_.carries() == Carries::kSmall) MarkUrgent(context_.peer());
  OnWritten(ok);
}

void Lane::OnWritten(bool ok) {
  std::shared_ptr<Lane> self;  // Goes after the lock.
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) Pump();
  if (is_finished_ && !writing_) self = LetGo();
}

void Lane::OnOver(bool) {
  std::function<void(const absl::Status&)> lost;
  absl::Status why;
  std::shared_ptr<Lane> self;
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

std::shared_ptr<Lane> Lane::LetGo() {
  loop_.Over();
  return std::move(self_);
}

void Lane::Cancel() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    observer_.lost = nullptr;
  }
  context_.TryCancel();
}

}  // namespace epd
