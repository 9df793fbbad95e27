// Goal: what comes on a stream from another worker never writes outside of the regions that are open, however it is cut
// into slices, and a message is understood or refused.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/held_rows.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/remote_regions.h"
#include "proto/epd/v1/wire.pb.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

constexpr uint64_t kRegion = 512;
constexpr char kUntouched = 0x5a;

grpc::ByteBuffer InSlices(std::string_view bytes, size_t cut) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += cut) {
    slices.emplace_back(std::string(bytes.substr(at, cut)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void Land(fuzz::Input& in) {
  const auto region = std::make_unique<char[]>(kRegion);
  std::memset(region.get(), kUntouched, kRegion);
  RemoteRegions regions;
  const PeerOperation operation{GroupId(1), Formation(1), 1};
  regions.Open(operation, kRegion, {{Rank(1), {region.get(), Incarnation(7)}}});
  uint64_t taken = 0;
  for (int i = 0; i < 8 && !in.empty(); ++i) {
    RowsFrame frame;
    frame.rank = 1 + in.Below(2);
    frame.group = frame.formation = 1;
    frame.number = 1 + in.Below(2);
    frame.total = in.Below(2) == 0 ? in.Take<uint8_t>() : in.Take<uint64_t>();
    std::vector<RowsPiece> pieces(in.Below(4));
    uint64_t said = 0;
    for (RowsPiece& piece : pieces) {
      piece.offset = in.Below(2) == 0 ? in.Take<uint16_t>() % 600 : in.Take<uint64_t>();
      piece.bytes = in.Below(4) != 0 ? in.Take<uint8_t>() : in.Take<uint64_t>();
      said += piece.bytes;
    }
    const std::string bytes = in.Text();
    BufferReader reader(InSlices(bytes, 1 + in.Below(64)));
    const RemoteRegions::Outcome outcome =
        regions.Land(Incarnation(7), frame, pieces, reader.Parts());
    const bool mine = frame.rank == 1 && frame.number == 1;
    if (outcome == RemoteRegions::Outcome::kBad) return;
    EPD_FUZZ_CHECK(frame.number == 1 || outcome == RemoteRegions::Outcome::kDropped);
    if (!mine) continue;
    taken += said;
    // Rows in excess are refused, and the last of them is noticed.
    EPD_FUZZ_CHECK(said <= bytes.size() && taken <= frame.total);
    EPD_FUZZ_CHECK((outcome == RemoteRegions::Outcome::kComplete) == (taken == frame.total));
  }
  regions.Close(operation);
}

void Understand(fuzz::Input& in) {
  const size_t cut = 1 + in.Below(64);
  const std::string bytes(in.Rest());
  BufferReader reader(InSlices(bytes, cut));
  const auto kind = reader.Peek<uint32_t>();
  EPD_FUZZ_CHECK(kind.has_value() == (bytes.size() >= sizeof(uint32_t)));
  v1::WireMessage proto;
  if (!proto.ParseFromString(reader.Rest(sizeof(uint32_t)))) return;
  LastSubject heard;
  const std::optional<PeerMessage> message = FromProto(proto, heard);
  if (!message.has_value()) return;
  LastSubject said;
  LastSubject heard_again;
  const std::optional<PeerMessage> again = FromProto(ToProto(*message, said), heard_again);
  EPD_FUZZ_CHECK(again.has_value() && again->key == message->key && again->step == message->step);
  EPD_FUZZ_CHECK(again->said.size() == message->said.size());
}

uint64_t Number(fuzz::Input& in) {
  return in.Below(8) != 0 ? in.Take<uint8_t>() : in.Take<uint64_t>();
}

// Rows ahead of an announce: what is believed lies in an eager buffer, whatever stands in front of the rows.
void TakeAhead(fuzz::Input& in) {
  v1::WireRowsAhead head;
  head.mutable_message()->set_step(static_cast<uint32_t>(LeaderStep::kRows));
  head.mutable_message()->set_program(std::string(16, 'p'));
  head.mutable_message()->add_said();
  if (in.Below(2) == 0) {
    v1::WireStageTable& table = *head.mutable_table();
    table.set_gathers(in.Below(4) == 0);
    table.set_has_weights(in.Below(3));
    table.set_num_rows(static_cast<uint32_t>(Number(in)));
    table.set_row_bytes(Number(in));
    for (uint32_t ranks = in.Below(5); ranks > 0; --ranks) {
      table.add_routes_to(static_cast<uint32_t>(Number(in)));
    }
    for (uint32_t routes = in.Below(6); routes > 0; --routes) {
      table.add_route_rows(static_cast<uint32_t>(Number(in)));
      if (in.Below(16) != 0) table.add_route_slots(static_cast<int32_t>(Number(in)));
      if (in.Below(2) != 0) table.add_route_weights(in.Take<uint32_t>());
    }
  } else {
    head.set_bytes_of_table(in.Text());
  }
  uint64_t rows = 0;
  for (uint32_t pieces = in.Below(4); pieces > 0; --pieces) {
    const uint64_t bytes = Number(in);
    head.add_pieces(Number(in));
    head.add_pieces(bytes);
    if (bytes < 4096) rows += bytes;
  }
  const std::string text = head.SerializeAsString();
  const RowsAheadFrame frame{.head_bytes = static_cast<uint32_t>(text.size())};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
  bytes += text + std::string(rows, 'r');
  if (in.Below(8) == 0) bytes += in.Text();
  BufferReader reader(InSlices(bytes, 1 + in.Below(64)));
  LastSubject heard;
  const std::optional<RowsMessage> read = ReadRowsAhead(reader, heard);
  if (!read.has_value()) return;
  const auto buffer = std::make_unique<char[]>(shm::kEagerBufferBytes);
  read->rows.Land(buffer.get());
}

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  switch (in.Below(3)) {
    case 0:
      epd::Land(in);
      break;
    case 1:
      epd::TakeAhead(in);
      break;
    default:
      epd::Understand(in);
  }
  return 0;
}
