#include "daemon/worker/peer_streams/frames_in.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/held_rows.h"
#include "proto/epd/v1/wire.pb.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// A frame's pieces never need more.
constexpr uint32_t kMaxPieces = 1 << 16;

constexpr uint32_t KindOf(FrameKind kind) { return static_cast<uint32_t>(kind); }

}  // namespace

grpc::Status FramesIn::Take(BufferReader& reader) {
  return reader.Peek<uint32_t>() == KindOf(FrameKind::kSeveral) ? TakeSeveral(reader)
                                                                : TakeOne(reader);
}

grpc::Status FramesIn::TakeOne(BufferReader& reader) {
  const std::optional<uint32_t> kind = reader.Peek<uint32_t>();
  if (kind == KindOf(FrameKind::kRows)) return TakeRows(reader);
  if (kind == KindOf(FrameKind::kRowsAhead)) return TakeRowsAhead(reader);
  if (kind == KindOf(FrameKind::kMessage)) return TakeMessage(reader);
  return BadKind(kind);
}

grpc::Status FramesIn::BadKind(std::optional<uint32_t> kind) {
  if (!kind.has_value()) return Bad("an empty buffer");
  return Bad(absl::StrCat("a buffer of kind ", *kind, " that has no place here"));
}

grpc::Status FramesIn::Stranger(const std::function<void(WireEvent)>& put,
                                const std::string& what) {
  put(PeerRefused{absl::UnauthenticatedError(what)});
  return {grpc::StatusCode::UNAUTHENTICATED, what};
}

grpc::Status FramesIn::TakeSeveral(BufferReader& reader) {
  uint32_t bytes = 0;
  reader.Read(&bytes, sizeof bytes);  // The kind.
  while (reader.left() > 0) {
    std::optional<BufferReader> one;
    if (reader.Read(&bytes, sizeof bytes)) one = reader.Split(bytes);
    if (!one.has_value()) return Bad("several buffers, of which the last one is cut");
    if (const grpc::Status problem = TakeOne(*one); !problem.ok()) return problem;
  }
  return grpc::Status::OK;
}

grpc::Status FramesIn::TakeMessage(BufferReader& reader) {
  v1::WireMessage proto;
  std::string bytes = reader.Rest(sizeof(uint32_t));
  EPD_FAILPOINT_FLIP("worker.wire.bytes", bytes.data(), bytes.size());
  if (!proto.ParseFromString(bytes)) return Bad("no message");
  std::optional<PeerMessage> message = FromProto(proto, heard_);
  if (!message.has_value() || message->step == LeaderStep::kRows) {
    return Bad(absl::StrCat("a message of step ", proto.step()));
  }
  put_(PeerSaid{from_.peer, *std::move(message)});
  return grpc::Status::OK;
}

grpc::Status FramesIn::TakeRowsAhead(BufferReader& reader) {
  from_.traffic->received_bytes.fetch_add(reader.left(), std::memory_order_relaxed);
  std::optional<RowsMessage> read = ReadRowsAhead(reader, heard_);
  if (!read.has_value()) return Bad("rows ahead of an announce that are none");
  put_(PeerSaid{from_.peer, std::move(read->message), std::move(read->rows)});
  return grpc::Status::OK;
}

grpc::Status FramesIn::TakeRows(BufferReader& reader) {
  from_.traffic->received_bytes.fetch_add(reader.left(), std::memory_order_relaxed);
  RowsFrame frame;
  if (!reader.Read(&frame, sizeof frame) || frame.num_pieces > kMaxPieces) return Bad("no rows");
  std::vector<RowsPiece> pieces(frame.num_pieces);
  if (!reader.Read(pieces.data(), pieces.size() * sizeof(RowsPiece))) return Bad("no pieces");
  switch (remote_regions_.Land(from_.peer, frame, pieces, reader.Parts())) {
    case RemoteRegions::Outcome::kBad:
      return Bad(absl::StrCat("rows of rank ", frame.rank, " outside of their region"));
    case RemoteRegions::Outcome::kForeign:
      return Stranger(put_, absl::StrCat("node ", from_.node, " sends rows of rank ", frame.rank,
                                         ", which another worker serves"));
    case RemoteRegions::Outcome::kComplete:
      put_(RowsCame{{GroupId(frame.group), Formation(frame.formation), frame.number},
                    Rank(frame.rank)});
      return grpc::Status::OK;
    case RemoteRegions::Outcome::kMore:
    case RemoteRegions::Outcome::kDropped:
      return grpc::Status::OK;
  }
  return grpc::Status::OK;
}

}  // namespace epd
