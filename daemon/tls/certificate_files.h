// This node's certificate files, read again while it runs. gRPC reads files again, too, but without a
// look at what it reads: a certificate that was exchanged for a bad one would end every link.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/unique_fd.h"
#include "daemon/tls/peer_check.h"
#include "proto/machine/thread.h"

namespace epd {

// What serves, and what should but cannot.
struct CertificateState {
  Validity validity;    // Of what serves.
  std::string refused;  // Why what lies in the files now does not serve; "": it does.
};

// What an operator must do about it; "": nothing. Warns 30 days before the end, and where a certificate is
// made for less than three times that, in the last third of its time.
std::string CertificateProblem(const CertificateState& state, absl::Time now);

// Holds copies of the last files that passed CheckOwn() in memory; whoever reads served() gets those. A thread
// of its own looks once a second, so that a slow file system stops nobody else.
class CertificateFiles {
 public:
  // Told of each new content, whether it serves (OK) or why not, and once a day of an end that is near; on the
  // watching thread.
  using OnNews = std::function<void(const absl::Status&)>;

  // Without files there is nothing to do.
  CertificateFiles(TlsFiles files, std::vector<std::string> hosts, OnNews on_news);
  ~CertificateFiles();

  // Before Start(): the copies that another program of this process made, so that whoever was handed them sees what
  // changes.
  void Adopt(const std::vector<std::shared_ptr<UniqueFd>>& copies);
  // Once. Errors as CheckOwn() and, of the key, CheckPrivateFile(), and RESOURCE_EXHAUSTED: memory, descriptors
  // or a thread.
  absl::Status Start();

  // Paths of the copies, in this process.
  const TlsFiles& served() const { return served_; }
  // The copies themselves, in the order of TlsFiles, for processes that are handed descriptors; none without
  // files. Their content changes.
  std::vector<std::shared_ptr<UniqueFd>> copies() const;
  CertificateState state() const;

 private:
  absl::Status Serve(const TlsPems& pems);
  void Look(TlsPems& seen, TlsPems& judged, absl::Time& warned);
  void Watch(TlsPems judged);

  const TlsFiles files_;
  const std::vector<std::string> hosts_;
  const OnNews on_news_;
  TlsFiles served_;
  std::array<std::shared_ptr<UniqueFd>, 3> copies_;

  mutable absl::Mutex mutex_;
  CertificateState state_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  Thread watcher_;
};

}  // namespace epd
