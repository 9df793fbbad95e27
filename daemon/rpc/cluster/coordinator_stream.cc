#include "daemon/rpc/cluster/coordinator_stream.h"

#include <utility>

namespace epd {

CoordinatorStream::CoordinatorStream(v1::Cluster::Stub& stub, v1::NodeReport hello, OnView on_view,
                                     OnEnd on_end)
    : on_view_(std::move(on_view)), on_end_(std::move(on_end)) {
  stub.async()->Sync(&context_, this);
  AddHold();  // Writes start outside of gRPC's callbacks.
  StartRead(&incoming_);
  Offer(std::move(hello));
  StartCall();
}

CoordinatorStream::~CoordinatorStream() {
  context_.TryCancel();
  done_.WaitForNotification();
}

void CoordinatorStream::Answer(v1::NodeReport hello, v1::ClusterAnswer answer) {
  const absl::MutexLock lock(&mutex_);
  if (broken_) return;
  if (!next_.has_value()) next_ = std::move(hello);
  *next_->add_answers() = std::move(answer);
  if (!writing_) WriteNext();
}

void CoordinatorStream::Offer(v1::NodeReport report) {
  const absl::MutexLock lock(&mutex_);
  if (broken_) return;
  if (next_.has_value()) report.mutable_answers()->Swap(next_->mutable_answers());
  next_ = std::move(report);
  if (!writing_) WriteNext();
}

void CoordinatorStream::WriteNext() {
  current_ = *std::move(next_);
  next_.reset();
  writing_ = true;
  StartWrite(&current_);
}

void CoordinatorStream::OnWriteDone(bool ok) {
  const absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (ok && next_.has_value() && !broken_) WriteNext();
}

void CoordinatorStream::OnReadDone(bool ok) {
  if (ok) {
    on_view_(std::exchange(incoming_, v1::ClusterView()));
    return StartRead(&incoming_);
  }
  {
    const absl::MutexLock lock(&mutex_);
    broken_ = true;
  }
  RemoveHold();
}

void CoordinatorStream::OnDone(const grpc::Status& status) {
  on_end_(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  done_.Notify();
}

}  // namespace epd
