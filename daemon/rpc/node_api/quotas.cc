#include "daemon/rpc/node_api/quotas.h"

namespace epd {
namespace {

void Put(const std::string& setting, uint64_t used, uint64_t max, bool is_bytes, v1::Quota& out) {
  out.set_setting(setting);
  out.set_used(used);
  out.set_max(max);
  out.set_is_bytes(is_bytes);
}

}  // namespace

std::map<uint32_t, v1::WorkerSnapshot::Use> UsesOfWorkers(const Node& node) {
  std::map<uint32_t, v1::WorkerSnapshot::Use> uses;
  for (const auto& [name, entry] : node.workers()) {
    if (!entry->supervisor.running()) continue;
    for (const v1::WorkerSnapshot::Use& use : entry->supervisor.figures().snapshot.uses()) {
      v1::WorkerSnapshot::Use& sum = uses[use.uid()];
      sum.set_num_operations(sum.num_operations() + use.num_operations());
      sum.set_staging_bytes(sum.staging_bytes() + use.staging_bytes());
    }
  }
  return uses;
}

void PutStaging(const std::string& setting, uint64_t max, const Settings& settings, uint64_t used,
                v1::Quota& out) {
  Put(setting, used, max == 0 ? settings.staging_bytes : max, /*is_bytes=*/true, out);
}

void PutQuotas(const Node& node, const AttachSession& session, v1::Session& out) {
  uint64_t num_operations = 0;
  for (const auto& [name, entry] : node.workers()) {
    for (const auto& line : entry->supervisor.figures().snapshot.sessions()) {
      if (line.session_id() == session.id.value) num_operations += line.num_operations();
    }
  }
  Put("max_operations_per_session", num_operations, node.settings().max_operations_per_session,
      /*is_bytes=*/false, *out.add_quotas());
  Put("max_queued_bytes", session.channel->queued_bytes(), session.channel->max_queued_bytes(),
      /*is_bytes=*/true, *out.add_quotas());
}

void PutUsers(const Node& node, v1::ListSessionsResponse& out) {
  const Settings& settings = node.settings();
  const UidShare limits = LimitsOf(settings).per_uid;
  std::map<uint32_t, v1::WorkerSnapshot::Use> working = UsesOfWorkers(node);
  std::map<uint32_t, UidShare> shares;
  for (const auto& [id, session] : node.clients().sessions()) {
    const uint32_t uid = session->peer.uid;
    if (shares.count(uid) == 0) shares[uid] = node.clients().UseOf(uid).all;
  }
  for (const auto& [uid, use] : node.control().Uses()) {
    if (shares.count(uid) == 0) continue;
    UidShare& share = shares[uid];
    share.groups = use.all.groups;
    share.ranks = use.all.ranks;
    share.table_entries = use.all.table_entries;
  }
  for (const auto& [uid, share] : shares) {
    v1::User& user = *out.add_users();
    user.set_uid(uid);
    for (const UidLimit& limit : kUidLimits) {
      Put(limit.setting, share.*limit.part, limits.*limit.part, /*is_bytes=*/false,
          *user.add_quotas());
    }
    Put("max_operations_per_uid", working[uid].num_operations(), settings.max_operations_per_uid,
        /*is_bytes=*/false, *user.add_quotas());
    PutStaging("max_staging_per_uid", settings.max_staging_per_uid, settings,
               working[uid].staging_bytes(), *user.add_quotas());
  }
}

}  // namespace epd
