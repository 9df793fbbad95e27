// Whether what one epd hands over can be taken by another one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// Of one build, see proto/epd/v1/handover.proto.
struct HandoverVersion {
  uint32_t major = 1;
  uint32_t minor = 0;
  // What it knows of `must_know`, and what it asks of whoever takes its own.
  std::vector<std::string> knows = {};
  std::vector<std::string> must_know = {};
};

// Of this source.
inline constexpr uint32_t kHandoverMajor = 1;
inline constexpr uint32_t kHandoverMinor = 3;
inline HandoverVersion OfThisSource() {
  // slots_layout: words of slots by themselves, and more than 256 slots (proto/epd/v1/slots_layout.h). landing_arenas: of a
  // group that is about to be told of its arenas; who takes one for a rank's arena gives clients none for the other ranks.
  return {.major = kHandoverMajor,
          .minor = kHandoverMinor,
          .knows = {"slots_layout", "landing_arenas"},
          .must_know = {"slots_layout", "landing_arenas"}};
}

// Whether `reader` can take what comes with `header`.
//   UNIMPLEMENTED  another major version, or something that must be known: names both versions, and what
absl::Status CheckVersion(const v1::HandoverHeader& header, const HandoverVersion& reader);

// The settings that clients and peers hold on to.
struct HandoverPlace {
  std::string node;
  std::string socket;
  std::string grpc_socket;
  std::string coordinator;
  std::string rendezvous;
};

v1::HandoverHeader MakeHeader(const HandoverVersion& writer, const std::string& epd_version,
                              const HandoverPlace& place);

// Whether a program with these settings can go on there.
//   FAILED_PRECONDITION  a setting differs: names it, and both values
absl::Status CheckPlace(const v1::HandoverHeader& header, const HandoverPlace& place);

}  // namespace epd
