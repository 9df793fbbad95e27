// What may travel on a link between epds, and how its ends prove who they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Whether the settings of links to others hold together.
//   FAILED_PRECONDITION  without TLS: `listen` or `wire_listen` is no loopback address and `insecure` is
//                        no, or there are other nodes and no cluster_secret; a file of etcd's that
//                        CheckPrivateFile() or CheckPair() refuses; errors of etcd's key as CheckPair(), of addresses as
//                        CheckAddresses()
absl::Status CheckLinks(const Settings& settings);

// The cluster's secret, where links are not TLS and there is one, else "". Errors as ReadClusterSecret().
absl::StatusOr<std::string> ReadSecretOfLinks(const Settings& settings);

// Why unique ids may not travel to or from `peer` (host:port or gRPC's form); empty: they may.
std::string WhyNoIds(const Settings& settings, const std::string& peer);

// Takes the unique ids out of what is about to cross a link on which they may not travel. The other
// end is told why.
void WithholdIds(const std::string& why, v1::NodeReport& report);
void WithholdIds(const std::string& why, v1::ClusterView& view);

}  // namespace epd
