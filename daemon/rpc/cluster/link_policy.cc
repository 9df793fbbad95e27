#include "daemon/rpc/cluster/link_policy.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/node/workers/wire_address.h"
#include "daemon/observe/log.h"
#include "daemon/tls/address.h"
#include "daemon/tls/private_file.h"

namespace epd {
namespace {

struct LastLine {
  absl::Mutex mutex;
  absl::Time at ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
};

}  // namespace

std::vector<std::string> OwnHosts(const Settings& settings) {
  WireAddress wire = ChooseWireAddress(settings);
  // Epd does not serve yet, so this may wait for a resolver.
  if (absl::string_view others = wire.listen; absl::ConsumePrefix(&others, kTowards))
    wire.listen = absl::StrCat(SourceTowards(std::string(others)), ":0");
  std::vector<std::string> hosts;
  for (const std::string& address :
       {settings.advertise.empty() ? settings.listen : settings.advertise,
        wire.advertise.empty() ? wire.listen : wire.advertise}) {
    const std::string host = HostOf(address);
    if (!host.empty() && host != "0.0.0.0" && host != "::") hosts.push_back(host);
  }
  return hosts;
}

std::unique_ptr<CertificateFiles> MakeCertificateFiles(const Settings& settings) {
  return std::make_unique<CertificateFiles>(
      TlsFiles{settings.tls_ca, settings.tls_cert, settings.tls_key},
      settings.tls_ca.empty() ? std::vector<std::string>() : OwnHosts(settings),
      [](const absl::Status& news) {
        if (news.ok()) return Log(LogLevel::kInfo, "certificate renewed");
        Log(LogLevel::kError, "certificate needs an operator", {{"why", news.message()}});
      });
}

OnRefusedPeer LogRefusedPeer() {
  return [last = std::make_shared<LastLine>()](const absl::Status& why) {
    {
      const absl::MutexLock lock(&last->mutex);
      const absl::Time now = absl::Now();
      if (now < last->at + absl::Seconds(1)) return;
      last->at = now;
    }
    Log(LogLevel::kWarn, "peer refused", {{"why", why.message()}});
  };
}

absl::Status CheckLinks(const Settings& settings) {
  if (absl::Status bad = CheckAddresses(settings); !bad.ok()) return bad;
  for (const auto& [name, path] : {std::pair{"etcd_key", settings.etcd_key},
                                   std::pair{"etcd_password_file", settings.etcd_password_file}}) {
    if (path.empty()) continue;
    if (absl::Status bad = CheckPrivateFile(name, path); !bad.ok()) return bad;
  }
  if (!settings.etcd_key.empty()) {
    const absl::Status fits =
        CheckPair({"etcd_cert", settings.etcd_cert}, {"etcd_key", settings.etcd_key},
                  ReadPem(settings.etcd_cert), ReadPem(settings.etcd_key));
    if (!fits.ok()) return fits;
  }
  if (!settings.tls_ca.empty()) return absl::OkStatus();
  const struct {
    const char* name;
    const std::string& address;
    const char* purpose;
  } listeners[] = {{"wire_listen", settings.wire_listen, "take rows of other nodes"},
                   {"listen", settings.listen, "serve gRPC"}};
  for (const auto& [name, address, purpose] : listeners) {
    if (address.empty() || IsLoopback(HostOf(address)) || settings.insecure == "yes") continue;
    return absl::FailedPreconditionError(
        absl::StrCat("cannot ", purpose, " on '", address, "' (", name,
                     "): without TLS only loopback addresses are taken; set tls_ca, tls_cert and "
                     "tls_key, or, where the whole network is trusted, insecure=yes"));
  }
  const bool follows = !settings.coordinator.empty() || !settings.rendezvous.empty();
  if (!follows || !settings.cluster_secret.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "there are other nodes (coordinator, peers or rendezvous), and nothing with which this one "
      "shows them that it is one of theirs; set tls_ca, tls_cert and tls_key, or, without TLS, "
      "cluster_secret");
}

absl::StatusOr<std::string> ReadSecretOfLinks(const Settings& settings) {
  if (!settings.tls_ca.empty()) return std::string();
  return ReadClusterSecret(settings.cluster_secret);
}

std::string WhyNoIds(const Settings& settings, const std::string& peer) {
  if (!settings.tls_ca.empty() || settings.plain_unique_ids == "allow") return "";
  if (IsLoopback(HostOf(peer))) return "";
  return absl::StrCat("unique ids do not travel unencrypted, and the link to ", HostOf(peer),
                      " is plain; set tls_ca, tls_cert and tls_key, or plain_unique_ids=allow");
}

void WithholdIds(const std::string& why, v1::NodeReport& report) {
  for (v1::ClusterWork& work : *report.mutable_work()) {
    if (work.unique_id().empty()) continue;
    work.clear_unique_id();
    work.mutable_id_status()->set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
    work.mutable_id_status()->set_message(why);
  }
}

void WithholdIds(const std::string& why, v1::ClusterView& view) {
  for (v1::ClusterGroup& group : *view.mutable_groups()) {
    if (group.unique_id().empty()) continue;
    group.clear_unique_id();
    group.set_no_id_reason(absl::StrCat("none: ", why));
  }
}

}  // namespace epd
