// gRPC credentials of the links between epds: mutual TLS, or plain where no files are set.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "daemon/tls/peer_check.h"

namespace epd {

// Told of every peer that is refused, on gRPC's threads; may be null.
using OnRefusedPeer = std::function<void(const absl::Status&)>;

// Both sides present a certificate and check the other's (peer_check.h). `files` are copies
// (certificate_files.h), read again every second, so renewed certificates need no restart; open
// connections keep theirs.
//
// gRPC's own check of chain and dates is off: it ends the handshake inside OpenSSL before anybody
// else sees the certificate, with "verify failed" on one side and nothing on the other (1.51), so
// that a refusal could not name whose certificate it was and what is wrong with it. CheckPeer()
// has OpenSSL make the same check once, after the handshake and before the first byte of a call.
// Without files there is no encryption and no authentication.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files,
                                                               OnRefusedPeer on_refused);
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsFiles& files,
                                                                 OnRefusedPeer on_refused);

}  // namespace epd
