#include "daemon/worker/peer_streams/held_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/wire.pb.h"

namespace epd {
namespace {

// Of a message that names one operation and one rank.
constexpr uint32_t kMaxMessageBytes = 64 << 10;
// A piece holds a byte at least.
constexpr uint32_t kMaxPieces = shm::kEagerBufferBytes;

// Pieces that lie one behind the other there are one, wherever they come from.
std::vector<RowsPiece> PlacesOf(const StageImage& image) {
  std::vector<RowsPiece> places;
  for (const ImagePiece& piece : image.pieces) {
    if (places.empty() || places.back().offset + places.back().bytes != piece.offset) {
      places.push_back({piece.offset, 0});
    }
    places.back().bytes += piece.bytes;
  }
  return places;
}

}  // namespace

void HeldRows::Land(char* eager_buffer) const {
  auto part = parts.begin();
  size_t used = 0;  // Of `part`.
  for (const RowsPiece& piece : pieces) {
    char* to = eager_buffer + piece.offset;
    for (uint64_t left = piece.bytes; left > 0;) {
      const size_t now = std::min<uint64_t>(left, part->second - used);
      std::memcpy(to, part->first + used, now);
      to += now;
      left -= now;
      used += now;
      if (used < part->second) continue;
      ++part;
      used = 0;
    }
  }
}

absl::StatusOr<grpc::ByteBuffer> FrameRowsAhead(const PeerMessage& message,
                                                const PublishedStage& stage,
                                                const std::vector<Rank>& destinations) {
  const absl::StatusOr<StageImage> image = MakeImage(stage, destinations);
  if (!image.ok()) return image.status();
  const std::string text = ToProto(message).SerializeAsString();
  const std::vector<RowsPiece> places = PlacesOf(*image);
  const RowsAheadFrame frame{.message_bytes = static_cast<uint32_t>(text.size()),
                             .num_pieces = static_cast<uint32_t>(places.size())};
  const size_t table = places.size() * sizeof(RowsPiece);
  grpc_slice raw = grpc_slice_malloc(sizeof frame + text.size() + table + image->bytes);
  auto* to = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(raw));
  const auto put = [&to](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  put(&frame, sizeof frame);
  put(text.data(), text.size());
  put(places.data(), table);
  size_t made_used = 0;
  for (const ImagePiece& piece : image->pieces) {
    put(piece.from != nullptr ? piece.from : image->made.data() + made_used, piece.bytes);
    if (piece.from == nullptr) made_used += piece.bytes;
  }
  const grpc::Slice slice(raw, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<RowsMessage> ReadRowsAhead(BufferReader& reader) {
  RowsAheadFrame frame;
  if (!reader.Read(&frame, sizeof frame)) return std::nullopt;
  if (frame.message_bytes > kMaxMessageBytes || frame.num_pieces > kMaxPieces) return std::nullopt;
  std::string text(frame.message_bytes, '\0');
  v1::WireMessage proto;
  if (!reader.Read(text.data(), text.size()) || !proto.ParseFromString(text)) return std::nullopt;
  std::optional<PeerMessage> message = FromProto(proto);
  if (!message.has_value() || message->step != LeaderStep::kRows || message->said.size() != 1) {
    return std::nullopt;
  }
  RowsMessage read{.message = *std::move(message), .rows = {}};
  const uint64_t table = uint64_t{frame.num_pieces} * sizeof(RowsPiece);
  if (table > reader.left()) return std::nullopt;
  read.rows.pieces.resize(frame.num_pieces);
  if (!reader.Read(read.rows.pieces.data(), table)) return std::nullopt;
  uint64_t bytes = 0;
  for (const RowsPiece& piece : read.rows.pieces) {
    if (piece.bytes == 0 || piece.bytes > shm::kEagerBufferBytes ||
        piece.offset > shm::kEagerBufferBytes - piece.bytes) {
      return std::nullopt;
    }
    bytes += piece.bytes;
  }
  if (bytes != reader.left()) return std::nullopt;
  read.rows.slices = reader.slices();
  read.rows.parts = reader.Parts();
  return read;
}

}  // namespace epd
