#include "daemon/rpc/cluster/link_policy.h"

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/node/workers/wire_address.h"
#include "daemon/observe/log.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

struct LastLine {
  absl::Mutex mutex;
  absl::Time at ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
};

}  // namespace

std::vector<std::string> OwnHosts(const Settings& settings) {
  const WireAddress wire = ChooseWireAddress(settings);
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

absl::Status CheckListen(const Settings& settings) {
  if (!settings.tls_ca.empty()) return absl::OkStatus();
  const struct {
    const char* name;
    const std::string& address;
    const char* purpose;
  } listeners[] = {{"wire_listen", settings.wire_listen, "take rows of other nodes"},
                   {"listen", settings.listen, "serve gRPC"}};
  for (const auto& [name, address, purpose] : listeners) {
    if (address.empty() || IsPrivate(HostOf(address))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("cannot ", purpose, " on '", address, "' (", name,
                     "): without TLS only loopback and private addresses are taken; set tls_ca, "
                     "tls_cert and tls_key, or name a private address"));
  }
  if (settings.listen.empty()) return absl::OkStatus();
  Log(LogLevel::kInfo, "no TLS: whoever reaches the address is believed",
      {{"listen", settings.listen}, {"fix", "set tls_ca, tls_cert and tls_key"}});
  return absl::OkStatus();
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
