#include "daemon/tls/peer_check.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/epd/v1/key_text.h"

namespace epd {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// Reads `pem` where it lies: it must outlive the result.
Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// In place of OpenSSL's own, which asks at the terminal.
int NoPassPhrase(char*, int, int, void*) { return 0; }

std::vector<Certificate> Parse(const std::string& pem) {
  std::vector<Certificate> out;
  const Bio bio = Open(pem);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, nullptr))
    out.emplace_back(one);
  ERR_clear_error();  // "no more certificates" is an error to OpenSSL.
  return out;
}

std::string FormatSubject(const X509& certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(&certificate), 0,
                     XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "(no subject)";
}

std::string FormatTime(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(std::max(size, 0L)));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTimeT(timegm(&parts));
}

bool IsAddress(const std::string& host) {
  const std::unique_ptr<ASN1_OCTET_STRING, Freed<ASN1_OCTET_STRING_free>> parsed(
      a2i_IPADDRESS(host.c_str()));
  ERR_clear_error();
  return parsed != nullptr;
}

// What is wrong, in words that name the remedy.
std::string Explain(int error, const X509& leaf, const std::string& host) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("has expired (valid until ", FormatTime(X509_get0_notAfter(&leaf)),
                          "); renew it");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat("is not valid before ", FormatTime(X509_get0_notBefore(&leaf)),
                          "; is a clock wrong?");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "is foreign: not signed by tls_ca; is it another cluster's?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("is not for '", host,
                          "', at which it is called; name that in its subjectAltName");
    case X509_V_ERR_INVALID_PURPOSE:
      return "is not made for this; it needs the extended key usages serverAuth and clientAuth";
    default:
      return absl::StrCat("is refused: ", X509_verify_cert_error_string(error));
  }
}

struct Verdict {
  int error = X509_V_OK;
  std::string subject;
  std::string why;
};

absl::StatusOr<Verdict> Verify(const PeerCertificate& peer, const std::string& ca_pem,
                               absl::Time now) {
  const std::vector<Certificate> leaf = Parse(peer.leaf);
  if (leaf.empty()) return absl::InvalidArgumentError("it is no PEM certificate");
  const Store store(X509_STORE_new());
  const std::vector<Certificate> trusted = Parse(ca_pem);
  if (trusted.empty()) return absl::InvalidArgumentError("tls_ca holds no PEM certificate");
  for (const Certificate& ca : trusted) X509_STORE_add_cert(store.get(), ca.get());
  const std::vector<Certificate> chain = Parse(peer.chain);
  STACK_OF(X509)* untrusted = sk_X509_new_null();
  for (const Certificate& one : chain) sk_X509_push(untrusted, one.get());

  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), leaf.front().get(), untrusted);
  X509_VERIFY_PARAM* want = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_purpose(
      want, peer.role == PeerRole::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  X509_VERIFY_PARAM_set_time(want, absl::ToTimeT(now));
  if (!peer.host.empty()) {
    if (IsAddress(peer.host)) {
      X509_VERIFY_PARAM_set1_ip_asc(want, peer.host.c_str());
    } else {
      X509_VERIFY_PARAM_set1_host(want, peer.host.data(), peer.host.size());
    }
  }
  Verdict verdict;
  verdict.subject = FormatSubject(*leaf.front());
  if (X509_verify_cert(context.get()) != 1) {
    verdict.error = X509_STORE_CTX_get_error(context.get());
    const X509* at = X509_STORE_CTX_get_current_cert(context.get());
    if (at == nullptr) at = leaf.front().get();
    verdict.why = Explain(verdict.error, *at, peer.host);
  }
  sk_X509_free(untrusted);
  ERR_clear_error();
  return verdict;
}

absl::Status CheckReadable(const std::string& pem, const std::string& path,
                           const std::string& setting) {
  if (!pem.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(setting, ": cannot read '", path, "'"));
}

}  // namespace

std::string ReadPem(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TlsPems ReadPems(const TlsFiles& files) {
  return {ReadPem(files.ca), ReadPem(files.cert), ReadPem(files.key)};
}

absl::Status CheckPeer(const PeerCertificate& peer, const std::string& ca_pem, absl::Time now) {
  const absl::StatusOr<Verdict> verdict = Verify(peer, ca_pem, now);
  if (!verdict.ok())
    return absl::UnauthenticatedError(
        absl::StrCat("the peer's certificate: ", verdict.status().message()));
  if (verdict->error == X509_V_OK) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the peer's certificate (", verdict->subject, ") ", verdict->why));
}

absl::Status CheckOwn(const TlsFiles& files, const TlsPems& pems,
                      const std::vector<std::string>& hosts, absl::Time now) {
  if (files.ca.empty() && files.cert.empty() && files.key.empty()) return absl::OkStatus();
  if (files.ca.empty() || files.cert.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        "tls_ca, tls_cert and tls_key: got some of them, expected all three or none");
  }
  absl::Status readable = CheckReadable(pems.ca, files.ca, "tls_ca");
  readable.Update(CheckReadable(pems.cert, files.cert, "tls_cert"));
  readable.Update(CheckReadable(pems.key, files.key, "tls_key"));
  if (!readable.ok()) return readable;
  std::vector<PeerCertificate> uses = {{pems.cert, pems.cert, PeerRole::kServer, ""},
                                       {pems.cert, pems.cert, PeerRole::kClient, ""}};
  for (const std::string& host : hosts)
    uses.push_back({pems.cert, pems.cert, PeerRole::kServer, host});
  for (const PeerCertificate& use : uses) {
    const absl::StatusOr<Verdict> verdict = Verify(use, pems.ca, now);
    if (!verdict.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("tls_cert '", files.cert, "': ", verdict.status().message()));
    if (verdict->error != X509_V_OK)
      return absl::FailedPreconditionError(
          absl::StrCat("tls_cert '", files.cert, "' (", verdict->subject, ") ", verdict->why));
  }
  return CheckPair({"tls_cert", files.cert}, {"tls_key", files.key}, pems.cert, pems.key);
}

absl::Status CheckPair(const NamedFile& cert_file, const NamedFile& key_file,
                       const std::string& cert_pem, const std::string& key_pem) {
  absl::Status readable = CheckReadable(cert_pem, cert_file.path, cert_file.setting);
  readable.Update(CheckReadable(key_pem, key_file.path, key_file.setting));
  if (!readable.ok()) return readable;
  if (key_text::IsEncrypted(key_pem))
    return absl::FailedPreconditionError(key_text::Refusal(key_file.setting, key_file.path));
  const std::vector<Certificate> certs = Parse(cert_pem);
  const Bio key_bio = Open(key_pem);
  const Key key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, NoPassPhrase, nullptr));
  const bool fits = !certs.empty() && key != nullptr &&
                    X509_check_private_key(certs.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (fits) return absl::OkStatus();
  if (certs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(cert_file.setting, ": '", cert_file.path, "' holds no PEM certificate"));
  }
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        key_file.setting, ": '", key_file.path, "' holds no PEM private key that OpenSSL reads"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      key_file.setting, " '", key_file.path, "' is not the private key of ", cert_file.setting));
}

Validity ValidityOf(const std::string& cert_pem) {
  Validity validity;
  for (const Certificate& one : Parse(cert_pem)) {
    const absl::Time ends = ToTime(X509_get0_notAfter(one.get()));
    if (ends < validity.ends) validity = {ToTime(X509_get0_notBefore(one.get())), ends};
  }
  return validity;
}

}  // namespace epd
