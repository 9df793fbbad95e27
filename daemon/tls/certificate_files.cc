#include "daemon/tls/certificate_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/tls/private_file.h"

namespace epd {
namespace {

constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kWarnBefore = absl::Hours(24 * 30);
constexpr absl::Duration kWarnAgain = absl::Hours(24);

std::shared_ptr<UniqueFd> MakeCopy() {
  auto copy =
      std::make_shared<UniqueFd>(memfd_create("epd-certificate", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = copy->valid() && fchmod(copy->get(), 0400) == 0 &&
                    fcntl(copy->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
  return made ? copy : nullptr;
}

// In one write, with empty lines over what is left of longer ones: who reads meanwhile, and finds a mixture,
// keeps what it has, and reads again.
absl::Status Write(std::string pem, const UniqueFd& copy) {
  struct stat old = {};
  fstat(copy.get(), &old);
  pem.resize(std::max(pem.size(), static_cast<size_t>(old.st_size)), '\n');
  if (pwrite(copy.get(), pem.data(), pem.size(), 0) == static_cast<ssize_t>(pem.size()))
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a copy of the certificates in memory: ", std::strerror(errno)));
}

}  // namespace

std::string CertificateProblem(const CertificateState& state, absl::Time now) {
  if (!state.refused.empty())
    return absl::StrCat("the certificate files do not serve, older ones do: ", state.refused);
  const Validity& validity = state.validity;
  const absl::Duration left = validity.ends - now;
  if (left >= std::min(kWarnBefore, (validity.ends - validity.begins) / 3)) return "";
  return absl::StrCat("tls_cert ends on ",
                      absl::FormatTime("%Y-%m-%d %H:%M", validity.ends, absl::UTCTimeZone()),
                      " UTC, in ", absl::FormatDuration(absl::Trunc(left, absl::Minutes(1))),
                      "; renew it, the files are read while epd runs");
}

CertificateFiles::CertificateFiles(TlsFiles files, std::vector<std::string> hosts, OnNews on_news)
    : files_(std::move(files)), hosts_(std::move(hosts)), on_news_(std::move(on_news)) {}

CertificateFiles::~CertificateFiles() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (watcher_.joinable()) watcher_.join();
}

void CertificateFiles::Adopt(const std::vector<std::shared_ptr<UniqueFd>>& copies) {
  if (copies.size() == copies_.size()) std::copy(copies.begin(), copies.end(), copies_.begin());
}

absl::Status CertificateFiles::Start() {
  TlsPems pems = ReadPems(files_);
  absl::Status ready = CheckOwn(files_, pems, hosts_, absl::Now());
  if (ready.ok() && files_.enabled()) ready = CheckPrivateFile("tls_key", files_.key);
  const bool adopted = copies_[0] != nullptr;
  if (!adopted && (!ready.ok() || !files_.enabled())) return ready;
  if (adopted) served_ = TlsFiles::Of(copies_[0]->get(), copies_[1]->get(), copies_[2]->get());
  if (ready.ok()) {
    ready = Serve(pems);
    if (!ready.ok()) return ready;
    served_ = TlsFiles::Of(copies_[0]->get(), copies_[1]->get(), copies_[2]->get());
  } else {  // What the program before this one served with goes on serving.
    const absl::MutexLock lock(&mutex_);
    state_ = {ValidityOf(ReadPem(served_.cert)), std::string(ready.message())};
    on_news_(ready);
  }
  const int error = StartThread(
      {"epd-certs"}, [this, pems = std::move(pems)]() mutable { Watch(std::move(pems)); },
      &watcher_);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(WhyNoThread("epd-certs", error));
}

std::vector<std::shared_ptr<UniqueFd>> CertificateFiles::copies() const {
  if (!served_.enabled()) return {};
  return {copies_.begin(), copies_.end()};
}

CertificateState CertificateFiles::state() const {
  const absl::MutexLock lock(&mutex_);
  return state_;
}

absl::Status CertificateFiles::Serve(const TlsPems& pems) {
  const std::string* contents[] = {&pems.ca, &pems.cert, &pems.key};
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i] == nullptr) copies_[i] = MakeCopy();
    if (copies_[i] == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a copy of the certificates in memory: ", std::strerror(errno)));
    }
  }
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (absl::Status written = Write(*contents[i], *copies_[i]); !written.ok()) return written;
  }
  const absl::MutexLock lock(&mutex_);
  state_ = {ValidityOf(pems.cert), ""};
  return absl::OkStatus();
}

// Judges what has not changed since the last look: files are exchanged one after the other.
void CertificateFiles::Look(TlsPems& seen, TlsPems& judged, absl::Time& warned) {
  TlsPems now = ReadPems(files_);
  const bool settled = now == seen;
  seen = std::move(now);
  if (settled && !(seen == judged)) {
    judged = seen;
    absl::Status good = CheckOwn(files_, seen, hosts_, absl::Now());
    if (good.ok()) good = CheckPrivateFile("tls_key", files_.key);
    if (good.ok()) good = Serve(seen);
    if (!good.ok()) {
      const absl::MutexLock lock(&mutex_);
      state_.refused = std::string(good.message());
      warned = absl::Now();
    }
    return on_news_(good);
  }
  const std::string problem = CertificateProblem(state(), absl::Now());
  if (problem.empty() || absl::Now() < warned + kWarnAgain) return;
  warned = absl::Now();
  on_news_(absl::FailedPreconditionError(problem));
}

void CertificateFiles::Watch(TlsPems judged) {
  TlsPems seen = judged;
  absl::Time warned = absl::InfinitePast();
  const auto is_ending = [this] {
    mutex_.AssertReaderHeld();
    return ending_;
  };
  for (;;) {
    {
      const absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&is_ending), kLook)) return;
    }
    Look(seen, judged, warned);
  }
}

}  // namespace epd
