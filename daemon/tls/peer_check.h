// Whether a certificate belongs to this cluster; says by name what is wrong with it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace epd {

// Paths of PEM files. Either none is set (links are plain) or all three.
struct TlsFiles {
  std::string ca;    // Certificates that sign this cluster's nodes.
  std::string cert;  // This node's certificate, then the intermediate ones.
  std::string key;

  bool enabled() const { return !ca.empty(); }
  // Paths of descriptors of this process.
  static TlsFiles Of(int ca, int cert, int key) {
    const std::string open = "/proc/self/fd/";
    return {open + std::to_string(ca), open + std::to_string(cert), open + std::to_string(key)};
  }
};

// What they hold.
struct TlsPems {
  std::string ca;
  std::string cert;
  std::string key;

  bool operator==(const TlsPems&) const = default;
};
// A file that cannot be read gives "".
TlsPems ReadPems(const TlsFiles& files);

enum class PeerRole { kServer, kClient };

struct PeerCertificate {
  std::string leaf;   // PEM.
  std::string chain;  // PEM: the leaf and what it came with; may be empty.
  PeerRole role = PeerRole::kServer;
  std::string host;  // What was dialled, a name or an address; empty: not compared (clients).
};

// Pure.
//   UNAUTHENTICATED  not signed by one of `ca`, expired, not valid yet, made for another host or
//                    another purpose: names the subject and what to do
absl::Status CheckPeer(const PeerCertificate& peer, const std::string& ca_pem, absl::Time now);

// Whether this node's files, which hold `pems`, may serve. `hosts` are what other nodes call this one.
//   INVALID_ARGUMENT     one or two of the three are missing; a file does not parse, or the key is
//                        another certificate's
//   NOT_FOUND            a file cannot be read
//   FAILED_PRECONDITION  the own certificate would be refused by every peer: has expired, is not
//                        valid yet, is not signed by `ca`, does not hold one of `hosts`; or the key is
//                        encrypted
absl::Status CheckOwn(const TlsFiles& files, const TlsPems& pems,
                      const std::vector<std::string>& hosts, absl::Time now);

// A file, and the setting that names it.
struct NamedFile {
  std::string setting;
  std::string path;
};
// Whether the key of `key_pem` can be used without a pass phrase, and is that of the first certificate of `cert_pem`.
//   NOT_FOUND            a file cannot be read: its text is empty
//   FAILED_PRECONDITION  the key is encrypted: names the command that removes the pass phrase
//   INVALID_ARGUMENT     a file does not parse, or the key is another certificate's
absl::Status CheckPair(const NamedFile& cert_file, const NamedFile& key_file,
                       const std::string& cert_pem, const std::string& key_pem);

// When the first of the certificates of `cert_pem` ends, and when that one began.
struct Validity {
  absl::Time begins = absl::InfinitePast();
  absl::Time ends = absl::InfiniteFuture();
};
Validity ValidityOf(const std::string& cert_pem);

// The file's content, or "" when it cannot be read.
std::string ReadPem(const std::string& path);

}  // namespace epd
