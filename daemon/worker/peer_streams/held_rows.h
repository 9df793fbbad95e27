// Rows that come with a message of their own, before it is known where they belong (engine/rows_ahead.h).
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stage_image.h"

namespace epd {

// As they came; the buffer's memory is theirs.
struct HeldRows {
  std::shared_ptr<const std::vector<grpc::Slice>> slices;
  std::vector<RowsPiece> pieces;
  std::vector<std::pair<const char*, size_t>> parts;  // Of the slices: the pieces' bytes in order.

  // Writes them into an eager buffer.
  void Land(char* eager_buffer) const;
};

struct RowsMessage {
  PeerMessage message;
  HeldRows rows;
};

// A buffer of kind kRowsAhead with what of the stage `destinations` get, which is copied.
//   DATA_LOSS  the stage is damaged
absl::StatusOr<grpc::ByteBuffer> FrameRowsAhead(const PeerMessage& message,
                                                const PublishedStage& stage,
                                                const std::vector<Rank>& destinations);

// What such a buffer holds. Nothing: it is none, or rows of it would lie outside of an eager buffer.
std::optional<RowsMessage> ReadRowsAhead(BufferReader& reader);

}  // namespace epd
