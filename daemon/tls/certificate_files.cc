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

namespace epd {
namespace {

constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kWarnBefore = absl::Hours(24 * 30);
constexpr absl::Duration kWarnAgain = absl::Hours(24);

absl::StatusOr<UniqueFd> Copy(const std::string& pem) {
  UniqueFd copy(memfd_create("epd-certificate", MFD_CLOEXEC));
  if (!copy.valid() || fchmod(copy.get(), 0400) != 0 ||
      write(copy.get(), pem.data(), pem.size()) != static_cast<ssize_t>(pem.size())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a copy of the certificates in memory: ", std::strerror(errno)));
  }
  return copy;
}

std::string PathOf(const UniqueFd& copy) {
  return absl::StrCat("/proc/", getpid(), "/fd/", copy.get());
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

absl::Status CertificateFiles::Start() {
  TlsPems pems = ReadPems(files_);
  absl::Status ready = CheckOwn(files_, pems, hosts_, absl::Now());
  if (!ready.ok() || !files_.enabled()) return ready;
  ready = Serve(pems);
  if (!ready.ok()) return ready;
  served_ = {PathOf(copies_[0]), PathOf(copies_[1]), PathOf(copies_[2])};
  watcher_ = std::thread([this, pems = std::move(pems)]() mutable { Watch(std::move(pems)); });
  return absl::OkStatus();
}

CertificateState CertificateFiles::state() const {
  const absl::MutexLock lock(&mutex_);
  return state_;
}

// The numbers of the copies stay, so their paths do.
absl::Status CertificateFiles::Serve(const TlsPems& pems) {
  const std::string* contents[] = {&pems.ca, &pems.cert, &pems.key};
  UniqueFd made[3];
  for (size_t i = 0; i < 3; ++i) {
    absl::StatusOr<UniqueFd> copy = Copy(*contents[i]);
    if (!copy.ok()) return copy.status();
    made[i] = *std::move(copy);
  }
  for (size_t i = 0; i < 3; ++i) {
    if (!copies_[i].valid()) {
      copies_[i] = std::move(made[i]);
    } else {
      dup3(made[i].get(), copies_[i].get(), O_CLOEXEC);
    }
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
