// What may travel on a link between epds, and how its ends prove who they are.
#pragma once

#include <string>

#include "daemon/node/settings/settings.h"
#include "daemon/tls/credentials.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

TlsFiles MakeTlsFiles(const Settings& settings);

// Logs a peer whose certificate is refused, at most once a second.
OnRefusedPeer LogRefusedPeer();

// Without TLS, whoever reaches `listen` or `wire_listen` is believed.
//   FAILED_PRECONDITION  one is neither loopback nor private, and there is no TLS
//   as CheckOwn          the files of tls_ca, tls_cert and tls_key
absl::Status CheckListen(const Settings& settings);

// Why unique ids may not travel to or from `peer` (host:port or gRPC's form); empty: they may.
std::string WhyNoIds(const Settings& settings, const std::string& peer);

// Takes the unique ids out of what is about to cross a link on which they may not travel. The other
// end is told why.
void WithholdIds(const std::string& why, v1::NodeReport& report);
void WithholdIds(const std::string& why, v1::ClusterView& view);

}  // namespace epd
