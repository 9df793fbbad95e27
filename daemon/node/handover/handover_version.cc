#include "daemon/node/handover/handover_version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

absl::Status CheckVersion(const v1::HandoverHeader& header, const HandoverVersion& reader) {
  if (header.major() != reader.major) {
    return absl::UnimplementedError(absl::StrCat(
        "epd ", header.epd_version(), " hands over state of version ", header.major(), ".",
        header.minor(), ", the other program takes ", reader.major,
        ".x; let epd end and start the other one (systemctl restart): calls wait for it"));
  }
  for (const std::string& name : header.must_know()) {
    if (std::find(reader.knows.begin(), reader.knows.end(), name) != reader.knows.end()) continue;
    return absl::UnimplementedError(absl::StrCat(
        "epd ", header.epd_version(), " hands over state of version ", header.major(), ".",
        header.minor(), " with '", name, "', which the other program, of version ", reader.major,
        ".", reader.minor, ", does not know; use a newer one, or restart epd"));
  }
  return absl::OkStatus();
}

v1::HandoverHeader MakeHeader(const HandoverVersion& writer, const std::string& epd_version,
                              const HandoverPlace& place) {
  v1::HandoverHeader header;
  header.set_major(writer.major);
  header.set_minor(writer.minor);
  for (const std::string& name : writer.must_know) header.add_must_know(name);
  header.set_epd_version(epd_version);
  header.set_node(place.node);
  header.set_socket(place.socket);
  header.set_grpc_socket(place.grpc_socket);
  header.set_coordinator(place.coordinator);
  header.set_rendezvous(place.rendezvous);
  return header;
}

absl::Status CheckPlace(const v1::HandoverHeader& header, const HandoverPlace& place) {
  const struct {
    const char* setting;
    const std::string& was;
    const std::string& is;
  } settings[] = {
      {"node", header.node(), place.node},
      {"socket", header.socket(), place.socket},
      {"grpc_socket", header.grpc_socket(), place.grpc_socket},
      {"coordinator", header.coordinator(), place.coordinator},
      {"rendezvous", header.rendezvous(), place.rendezvous},
  };
  for (const auto& one : settings) {
    if (one.was == one.is) continue;
    return absl::FailedPreconditionError(absl::StrCat(one.setting, ": got '", one.is,
                                                      "', and the epd that is to be replaced has '",
                                                      one.was, "'; restart epd to change it"));
  }
  return absl::OkStatus();
}

}  // namespace epd
