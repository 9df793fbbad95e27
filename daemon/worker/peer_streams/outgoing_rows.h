// One rank's rows on their way to one other node, frame by frame.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stage_image.h"

namespace epd {

// Whether rows of an operation may still be read from its stages; shared by all that send them.
class StageGate {
 public:
  // When it returns, nobody reads the stages.
  void Shut() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  // Shared by those who read the stages.
  std::shared_mutex& mutex() { return mutex_; }
  bool open() const { return open_; }  // Under the mutex.

 private:
  std::shared_mutex mutex_;
  bool open_ = true;
};

// Used by one stream at a time.
class OutgoingRows {
 public:
  OutgoingRows(PeerOperation operation, PublishedStage stage, std::vector<int32_t> expert_owner,
               std::vector<Rank> destinations, std::shared_ptr<StageGate> gate)
      : operation_(operation),
        stage_(stage),
        expert_owner_(std::move(expert_owner)),
        destinations_(std::move(destinations)),
        gate_(std::move(gate)) {
    if (!expert_owner_.empty()) stage_.spec.expert_owner = expert_owner_.data();
  }

  // The next frame, of about kFrameBytes; nothing: all were sent, or the operation is over.
  //   DATA_LOSS  the stage is damaged
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Next();

  const PeerOperation& operation() const { return operation_; }
  Rank rank() const { return stage_.rank; }

 private:
  // What the next frame carries, each with where it comes from.
  std::vector<ImagePiece> Choose();

  const PeerOperation operation_;
  PublishedStage stage_;
  const std::vector<int32_t> expert_owner_;
  const std::vector<Rank> destinations_;
  const std::shared_ptr<StageGate> gate_;
  std::optional<StageImage> image_;
  size_t piece_ = 0;
  uint64_t done_ = 0;       // Of the piece.
  uint64_t made_used_ = 0;  // Of image_->made, before the piece.
};

}  // namespace epd
