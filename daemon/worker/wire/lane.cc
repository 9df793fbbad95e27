#include "daemon/worker/wire/lane.h"

#include <utility>

#include "daemon/worker/wire/frame.h"

namespace epd {

std::shared_ptr<Lane> Lane::Start(const std::shared_ptr<grpc::Channel>& channel,
                                  grpc::ByteBuffer hello, LaneObserver observer) {
  std::shared_ptr<Lane> lane(new Lane(channel, std::move(observer)));
  lane->self_ = lane;
  lane->stub_.PrepareBidiStreamingCall(&lane->context_, kWireMethod, grpc::StubOptions(),
                                       lane.get());
  lane->AddHold();  // Writes start from other threads.
  lane->StartRead(&lane->unread_);
  lane->Send(std::move(hello));
  lane->StartCall();
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
  StartWrite(&frame_);
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

void Lane::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) Pump();
}

// The other worker never writes: its stream has ended.
void Lane::OnReadDone(bool) {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  context_.TryCancel();
  RemoveHold();
}

void Lane::OnDone(const grpc::Status& status) {
  std::function<void(const absl::Status&)> lost;
  std::shared_ptr<Lane> self;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    lost = std::move(observer_.lost);
    observer_.lost = nullptr;
    messages_.clear();
    rows_.clear();
    self = std::move(self_);
  }
  if (lost) lost(absl::UnavailableError(status.error_message()));
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
