#include "daemon/worker/peer_streams/held_rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/worker/peer_streams/stage_table_codec.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/wire.pb.h"

namespace epd {
namespace {

// Of a message that names one operation and one rank, of a table, and of pieces, which hold a byte each at least.
constexpr uint32_t kMaxHeadBytes = 1 << 20;

// Behind the table, which stands at the start. Pieces that lie one behind the other there are one, wherever they come from.
std::vector<RowsPiece> PlacesOf(const StageImage& image) {
  std::vector<RowsPiece> places;
  for (const ImagePiece& piece : image.pieces) {
    if (piece.from == nullptr) continue;
    if (places.empty() || places.back().offset + places.back().bytes != piece.offset) {
      places.push_back({piece.offset, 0});
    }
    places.back().bytes += piece.bytes;
  }
  return places;
}

void PutPieces(const std::vector<RowsPiece>& places, uint64_t table_bytes, v1::WireRowsAhead& out) {
  uint64_t end = table_bytes;
  for (const RowsPiece& place : places) {
    out.add_pieces(place.offset - end);
    out.add_pieces(place.bytes);
    end = place.offset + place.bytes;
  }
}

// Nothing: one of them is empty, or lies outside of an eager buffer.
std::optional<std::vector<RowsPiece>> TakePieces(const v1::WireRowsAhead& in,
                                                 uint64_t table_bytes) {
  if (in.pieces_size() % 2 != 0) return std::nullopt;
  std::vector<RowsPiece> places;
  uint64_t end = table_bytes;
  for (int i = 0; i < in.pieces_size(); i += 2) {
    const uint64_t gap = in.pieces(i);
    const uint64_t bytes = in.pieces(i + 1);
    if (gap > shm::kEagerBufferBytes - end) return std::nullopt;
    if (bytes == 0 || bytes > shm::kEagerBufferBytes - end - gap) return std::nullopt;
    places.push_back({end + gap, bytes});
    end += gap + bytes;
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
                                                const std::vector<Rank>& destinations,
                                                LastSubject& last) {
  const absl::StatusOr<StageImage> image = MakeImage(stage, destinations);
  if (!image.ok()) return image.status();
  v1::WireRowsAhead head;
  *head.mutable_message() = ToProto(message, last);
  PutTable(image->made, head);
  PutPieces(PlacesOf(*image), image->made.size(), head);
  const std::string text = head.SerializeAsString();
  const RowsAheadFrame frame{.head_bytes = static_cast<uint32_t>(text.size())};
  grpc_slice raw =
      grpc_slice_malloc(sizeof frame + text.size() + image->bytes - image->made.size());
  auto* to = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(raw));
  const auto put = [&to](const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  };
  put(&frame, sizeof frame);
  put(text.data(), text.size());
  for (const ImagePiece& piece : image->pieces) {
    if (piece.from != nullptr) put(piece.from, piece.bytes);
  }
  const grpc::Slice slice(raw, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<RowsMessage> ReadRowsAhead(BufferReader& reader, LastSubject& last) {
  RowsAheadFrame frame;
  if (!reader.Read(&frame, sizeof frame)) return std::nullopt;
  if (frame.head_bytes > kMaxHeadBytes || frame.head_bytes > reader.left()) return std::nullopt;
  std::string text(frame.head_bytes, '\0');
  v1::WireRowsAhead head;
  if (!reader.Read(text.data(), text.size()) || !head.ParseFromString(text)) return std::nullopt;
  std::optional<PeerMessage> message = FromProto(head.message(), last);
  if (!message.has_value() || message->step != LeaderStep::kRows || message->said.size() != 1) {
    return std::nullopt;
  }
  std::optional<std::string> table = TakeTable(head, shm::kEagerBufferBytes);
  if (!table.has_value()) return std::nullopt;
  std::optional<std::vector<RowsPiece>> places = TakePieces(head, table->size());
  if (!places.has_value()) return std::nullopt;
  uint64_t bytes = 0;
  for (const RowsPiece& piece : *places) bytes += piece.bytes;
  if (bytes != reader.left()) return std::nullopt;

  RowsMessage read{.message = *std::move(message), .rows = {}};
  read.rows.slices = reader.slices();
  read.rows.table = std::make_shared<const std::string>(*std::move(table));
  read.rows.pieces = *std::move(places);
  read.rows.parts = reader.Parts();
  if (const std::string& all = *read.rows.table; !all.empty()) {
    read.rows.pieces.insert(read.rows.pieces.begin(), {0, all.size()});
    read.rows.parts.insert(read.rows.parts.begin(), {all.data(), all.size()});
  }
  return read;
}

}  // namespace epd
