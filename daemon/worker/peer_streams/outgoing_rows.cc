#include "daemon/worker/peer_streams/outgoing_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace epd {
namespace {

// The pieces' table must not become larger than the rows.
constexpr size_t kMaxPieces = 2048;

}  // namespace

std::vector<OutgoingRows::Chosen> OutgoingRows::Choose(uint64_t* bytes) {
  std::vector<Chosen> chosen;
  *bytes = 0;
  while (piece_ < image_->pieces.size() && *bytes < kFrameBytes && chosen.size() < kMaxPieces) {
    const ImagePiece& piece = image_->pieces[piece_];
    const uint64_t now = std::min(piece.bytes - done_, kFrameBytes - *bytes);
    const char* from =
        piece.from != nullptr ? piece.from + done_ : image_->made.data() + made_used_ + done_;
    // Rows that lie one behind the other there are one piece, wherever they come from.
    const uint64_t offset = piece.offset + done_;
    chosen.push_back({{offset, now}, from});
    *bytes += now;
    done_ += now;
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
  uint64_t bytes = 0;
  const std::vector<Chosen> chosen = Choose(&bytes);
  std::vector<RowsPiece> places;
  for (const Chosen& one : chosen) {
    if (!places.empty() && places.back().offset + places.back().bytes == one.place.offset) {
      places.back().bytes += one.place.bytes;
    } else {
      places.push_back(one.place);
    }
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
  to += sizeof frame;
  if (table > 0) std::memcpy(to, places.data(), table);
  to += table;
  for (const Chosen& one : chosen) {
    std::memcpy(to, one.from, one.place.bytes);
    to += one.place.bytes;
  }
  const grpc::Slice slice(raw, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace epd
