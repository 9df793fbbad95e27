// What may travel on a link between epds, and how its ends prove who they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/node/settings/settings.h"
#include "daemon/tls/certificate_files.h"
#include "daemon/tls/credentials.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

// What other nodes call this one: its certificate must hold all of it. Without those of a wildcard.
std::vector<std::string> OwnHosts(const Settings& settings);

// This node's certificates, not started yet. Logs what becomes of them.
std::unique_ptr<CertificateFiles> MakeCertificateFiles(const Settings& settings);

// Logs a peer whose certificate is refused, at most once a second.
OnRefusedPeer LogRefusedPeer();

// Without TLS, whoever reaches `listen` or `wire_listen` is believed.
//   FAILED_PRECONDITION  one is neither loopback nor private, and there is no TLS
absl::Status CheckListen(const Settings& settings);

// Why unique ids may not travel to or from `peer` (host:port or gRPC's form); empty: they may.
std::string WhyNoIds(const Settings& settings, const std::string& peer);

// Takes the unique ids out of what is about to cross a link on which they may not travel. The other
// end is told why.
void WithholdIds(const std::string& why, v1::NodeReport& report);
void WithholdIds(const std::string& why, v1::ClusterView& view);

}  // namespace epd
