#include "daemon/worker/peer_streams/outgoing_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// The pieces' table must not become larger than the rows.
constexpr size_t kMaxPieces = 2048;

}  // namespace

std::vector<ImagePiece> OutgoingRows::Choose() {
  std::vector<ImagePiece> chosen;
  uint64_t bytes = 0;
  while (piece_ < image_->pieces.size() && bytes < kFrameBytes && chosen.size() < kMaxPieces) {
    const ImagePiece& piece = image_->pieces[piece_];
    const char* from = piece.from != nullptr ? piece.from : image_->made.data() + made_used_;
    chosen.push_back({.offset = piece.offset + done_,
                      .bytes = std::min(piece.bytes - done_, kFrameBytes - bytes),
                      .from = from + done_});
    bytes += chosen.back().bytes;
    done_ += chosen.back().bytes;
    if (done_ < piece.bytes) continue;
    if (piece.from == nullptr) made_used_ += piece.bytes;
    ++piece_;
    done_ = 0;
  }
  return chosen;
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> OutgoingRows::Next() {
  const std::shared_lock lock(gate_->mutex());
  if (!gate_->open()) return std::nullopt;
  if (!image_.has_value()) {
    absl::StatusOr<StageImage> image = MakeImage(stage_, destinations_);
    if (!image.ok()) return image.status();
    image_ = *std::move(image);
  } else if (piece_ == image_->pieces.size()) {
    return std::nullopt;
  }
  const std::vector<ImagePiece> chosen = Choose();
  uint64_t bytes = 0;
  // Rows that lie one behind the other there are one piece, wherever they come from.
  std::vector<RowsPiece> places;
  for (const ImagePiece& one : chosen) {
    bytes += one.bytes;
    if (places.empty() || places.back().offset + places.back().bytes != one.offset) {
      places.push_back({one.offset, 0});
    }
    places.back().bytes += one.bytes;
  }
  const RowsFrame frame{.rank = stage_.rank.value,
                        .group = operation_.group.value,
                        .formation = operation_.formation.value,
                        .number = operation_.number,
                        .total = image_->bytes,
                        .num_pieces = static_cast<uint32_t>(places.size())};
  const size_t table = places.size() * sizeof(RowsPiece);
  grpc_slice raw = grpc_slice_malloc(sizeof frame + table + bytes);
  auto* to = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(raw));
  std::memcpy(to, &frame, sizeof frame);
  EPD_FAILPOINT_FLIP("worker.wire.header", to, sizeof frame);
  to += sizeof frame;
  if (table > 0) std::memcpy(to, places.data(), table);
  to += table;
  for (const ImagePiece& one : chosen) {
    std::memcpy(to, one.from, one.bytes);
    to += one.bytes;
  }
  const grpc::Slice slice(raw, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace epd
