#include "daemon/tls/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned int kReadAgainSeconds = 1;

// gRPC's own check says only "verify failed"; this one does the same work and gives the reason. The
// peer has proved by then that it owns the certificate's key.
class Check final : public tls::ExternalCertificateVerifier {
 public:
  Check(std::string ca, PeerRole role, OnRefusedPeer on_refused)
      : ca_(std::move(ca)), role_(role), on_refused_(std::move(on_refused)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* verdict) override {
    PeerCertificate peer;
    peer.leaf = std::string(request->peer_cert().data(), request->peer_cert().size());
    peer.chain =
        std::string(request->peer_cert_full_chain().data(), request->peer_cert_full_chain().size());
    peer.role = role_;
    if (role_ == PeerRole::kServer)
      peer.host = HostOf(std::string(request->target_name().data(), request->target_name().size()));
    const absl::Status checked = CheckPeer(peer, ReadPem(ca_), absl::Now());
    if (!checked.ok()) {
      if (on_refused_) on_refused_(checked);
      *verdict = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(checked.message()));
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string ca_;
  const PeerRole role_;
  const OnRefusedPeer on_refused_;
};

void Fill(const TlsFiles& files, PeerRole peer, OnRefusedPeer on_refused,
          tls::TlsCredentialsOptions& options) {
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_check_call_host(false);  // Check compares it.
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<Check>(files.ca, peer, std::move(on_refused)));
}

std::shared_ptr<tls::CertificateProviderInterface> Watch(const TlsFiles& files) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.cert, files.ca,
                                                               kReadAgainSeconds);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files,
                                                               OnRefusedPeer on_refused) {
  if (!files.enabled()) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions options(Watch(files));
  Fill(files, PeerRole::kClient, std::move(on_refused), options);
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsFiles& files,
                                                                 OnRefusedPeer on_refused) {
  if (!files.enabled()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  Fill(files, PeerRole::kServer, std::move(on_refused), options);
  options.set_verify_server_certs(false);
  return tls::TlsCredentials(options);
}

}  // namespace epd
