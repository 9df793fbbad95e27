#include "daemon/node/handover/handover_check.h"

#include <iostream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/packet/packet.h"

namespace epd {
namespace {

constexpr int kSocket = 3;  // As Spawn gives it.

absl::StatusOr<v1::HandoverHeader> ReadHeader() {
  bool would_block = false;
  const absl::StatusOr<Packet> packet = ReceivePacket(kSocket, &would_block);
  v1::HandoverHeader header;
  if (packet.ok() && !would_block && header.ParseFromString(packet->bytes)) return header;
  return absl::InvalidArgumentError(
      "descriptor 3: expected a socket with a HandoverHeader; epd starts this program so itself");
}

absl::Status Check(const v1::HandoverHeader& header, const std::vector<std::string>& args,
                   const MachineFacts& facts, const HandoverVersion& version) {
  if (absl::Status bad = CheckVersion(header, version); !bad.ok()) return bad;
  const absl::StatusOr<ParsedSettings> parsed = ParseSettings(args, facts);
  if (!parsed.ok()) return parsed.status();
  return CheckPlace(header, PlaceOf(parsed->settings));
}

}  // namespace

HandoverPlace PlaceOf(const Settings& settings) {
  return {settings.node, settings.socket, settings.grpc_socket, settings.coordinator,
          settings.rendezvous};
}

int AnswerHandoverCheck(const std::vector<std::string>& args, const MachineFacts& facts,
                        const HandoverVersion& version, const std::string& epd_version) {
  const absl::StatusOr<v1::HandoverHeader> header = ReadHeader();
  if (!header.ok()) {
    std::cerr << "epd: " << header.status().message() << "\n";
    return 2;
  }
  v1::HandoverVerdict verdict;
  *verdict.mutable_status() = ToProto(Check(*header, args, facts, version));
  verdict.set_epd_version(epd_version);
  verdict.set_major(version.major);
  verdict.set_minor(version.minor);
  const absl::StatusOr<SendResult> sent = SendPacket(kSocket, verdict.SerializeAsString(), {});
  return sent.ok() && verdict.status().code() == 0 ? 0 : 1;
}

}  // namespace epd
