// Rows that come with a message of their own, before it is known where they belong (engine/rows_ahead.h).
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/stage_image.h"

namespace epd {

// As they came; the buffer's memory is theirs.
struct HeldRows {
  std::shared_ptr<const std::vector<grpc::Slice>> slices;
  std::shared_ptr<const std::string> table;  // What stands in front of the rows.
  std::vector<RowsPiece> pieces;
  // Of the table and the slices: the pieces' bytes in order.
  std::vector<std::pair<const char*, size_t>> parts;

  // Writes them into an eager buffer.
  void Land(char* eager_buffer) const;
};

struct RowsMessage {
  PeerMessage message;
  HeldRows rows;
};

// A buffer of kind kRowsAhead with what of the stage `destinations` get, which is copied.
//   DATA_LOSS  the stage is damaged; `last` stays as it is
absl::StatusOr<grpc::ByteBuffer> FrameRowsAhead(const PeerMessage& message,
                                                const PublishedStage& stage,
                                                const std::vector<Rank>& destinations,
                                                LastSubject& last);

// What such a buffer holds. Nothing: it is none, or rows of it would lie outside of an eager buffer.
std::optional<RowsMessage> ReadRowsAhead(BufferReader& reader, LastSubject& last);

}  // namespace epd
