#include "daemon/metrics/node_metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/metrics/exposition.h"

namespace epd {
namespace {

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

// "GROUP_STATE_RE_FORMING", "GROUP_STATE_" -> "re_forming".
std::string Word(const std::string& name, size_t prefix) {
  return absl::AsciiStrToLower(name.substr(std::min(prefix, name.size())));
}

std::string StateWord(v1::GroupState state) {
  return Word(v1::GroupState_Name(state), sizeof("GROUP_STATE_") - 1);
}

void AddNode(const v1::GetFiguresResponse& figures, absl::Duration age, Exposition& out) {
  const v1::GetStatusResponse& status = figures.status();
  out.Add("epd_build_info", {status.version(), status.node()}, 1);
  out.Add("epd_up_seconds", {}, Seconds(status.up()));
  for (const auto health : {v1::HEALTH_OK, v1::HEALTH_DEGRADED, v1::HEALTH_UNHEALTHY})
    out.Add("epd_health", {Word(v1::Health_Name(health), sizeof("HEALTH_") - 1)},
            status.health() == health ? 1 : 0);
  out.Add("epd_figures_age_seconds", {}, absl::ToDoubleSeconds(age));
  out.Add("epd_sessions", {}, status.num_sessions());
  for (const auto& limit : figures.limits()) {
    out.Add("epd_limit", {limit.what()}, static_cast<double>(limit.limit()));
    out.Add("epd_limit_used", {limit.what()}, static_cast<double>(limit.used()));
  }
  out.Add("epd_coordinator_connected", {}, status.coordinator_connected() ? 1 : 0);
  out.Add("epd_coordinator_leads", {}, status.coordinates() ? 1 : 0);
  if (status.has_lease()) {
    const v1::CoordinatorLease& lease = status.lease();
    if (lease.term() != 0)
      out.Add("epd_coordinator_term", {lease.holder()}, static_cast<double>(lease.term()));
    out.Add("epd_coordinator_lease_left_seconds", {}, Seconds(lease.left()));
  }
  if (status.has_certificate())
    out.Add("epd_certificate_left_seconds", {}, Seconds(status.certificate().left()));
  out.Add("epd_workers_stale", {}, status.worker_snapshot_stale() ? 1 : 0);
  for (const v1::NodeTraffic& traffic : status.traffic()) {
    out.Add("epd_wire_sent_bytes_total", {traffic.node()},
            static_cast<double>(traffic.sent_bytes()));
    out.Add("epd_wire_received_bytes_total", {traffic.node()},
            static_cast<double>(traffic.received_bytes()));
    out.Add("epd_wire_queue_length", {traffic.node(), "messages"},
            static_cast<double>(traffic.queued_messages()));
    out.Add("epd_wire_queue_length", {traffic.node(), "rows"},
            static_cast<double>(traffic.queued_rows()));
  }
  out.Add("epd_staging_pool_bytes", {}, static_cast<double>(status.pool_bytes()));
  out.Add("epd_staging_committed_bytes", {}, static_cast<double>(status.pool_committed_bytes()));
  out.Add("epd_staging_peak_bytes", {}, static_cast<double>(status.pool_peak_bytes()));
}

// A counter that appears with its first event has not increased, and no alert sees that one: what may be counted is there
// before, as 0. Here, and in AddGroups.
void AddZeros(const std::string& worker, Exposition& out) {
  for (const char* cause : {"exited", "signal_6", "signal_9", "signal_11", "signal_15",
                            "unanswered", "killed_by_epd", "not_started"})
    out.Add("epd_worker_restarts_total", {worker, cause}, 0);
  for (const char* kind :
       {"prepare", "dispatch", "combine", "dispatch_backward", "combine_backward"}) {
    for (const auto code :
         {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
          absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kResourceExhausted,
          absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted,
          absl::StatusCode::kInternal, absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss})
      out.Add("epd_operations_total", {worker, kind, absl::StatusCodeToString(code)}, 0);
  }
}

void AddWorkers(const v1::GetFiguresResponse& figures, Exposition& out) {
  for (const v1::Worker& worker : figures.status().workers())
    out.Add("epd_worker_up", {worker.device()}, worker.state() == v1::WORKER_STATE_RUNNING ? 1 : 0);
  for (const auto& worker : figures.workers()) {
    AddZeros(worker.worker(), out);
    for (const auto& restart : worker.restarts())
      out.Add("epd_worker_restarts_total", {worker.worker(), restart.cause()},
              static_cast<double>(restart.count()));
    for (const v1::KindFigures& kind : worker.kinds()) {
      for (const auto& outcome : kind.outcomes()) {
        const auto code = static_cast<absl::StatusCode>(outcome.code());
        out.Add("epd_operations_total",
                {worker.worker(), kind.kind(), absl::StatusCodeToString(code)},
                static_cast<double>(outcome.num_operations()));
      }
      for (const auto& phase : kind.phases())
        out.AddTimes("epd_operation_phase_seconds", {worker.worker(), kind.kind(), phase.phase()},
                     phase.counts(), phase.seconds());
    }
  }
}

void AddExperts(const v1::Group& group, Exposition& out) {
  const auto& routes = group.expert_routes();
  const uint64_t sum = std::accumulate(routes.begin(), routes.end(), uint64_t{0});
  if (sum == 0) return;
  const std::string& name = group.spec().name();
  const std::string& tenant = group.spec().tenant();
  for (int e = 0; e < routes.size(); ++e)
    out.Add("epd_expert_routes_total", {name, tenant, absl::StrCat(e)},
            static_cast<double>(routes[e]));
  const uint64_t most = *std::max_element(routes.begin(), routes.end());
  out.Add("epd_expert_imbalance_ratio", {name, tenant},
          static_cast<double>(most) * routes.size() / static_cast<double>(sum));
}

void AddGroups(const v1::GetFiguresResponse& figures, Exposition& out) {
  for (int state = v1::GROUP_STATE_FORMING; state <= v1::GROUP_STATE_DRAINING; ++state)
    out.Add("epd_groups", {StateWord(static_cast<v1::GroupState>(state))}, 0);
  out.Add("epd_group_transitions_total", {"rank_lost", "degraded"}, 0);
  out.Add("epd_group_transitions_total", {"worker_lost", "re_forming"}, 0);
  for (const auto& count : figures.transitions())
    out.Add("epd_group_transitions_total", {count.event(), absl::AsciiStrToLower(count.to())},
            static_cast<double>(count.count()));
  for (const v1::Group& group : figures.groups()) {
    const Exposition::Labels labels = {group.spec().name(), group.spec().tenant()};
    const auto with = [&labels](std::string last) {
      Exposition::Labels all = labels;
      all.push_back(std::move(last));
      return all;
    };
    out.Add("epd_groups", {StateWord(group.state())}, 1);
    out.Add("epd_group_ready", labels, group.state() == v1::GROUP_STATE_READY ? 1 : 0);
    out.Add("epd_group_epoch", labels, static_cast<double>(group.epoch()));
    out.Add("epd_group_formation", labels, static_cast<double>(group.formation()));
    out.Add("epd_group_generation", labels, static_cast<double>(group.generation()));
    if (!group.link().empty()) out.Add("epd_groups_by_link", {group.link()}, 1);
    out.Add("epd_group_operations_total", with("ok"), static_cast<double>(group.num_operations()));
    out.Add("epd_group_operations_total", with("failed"), static_cast<double>(group.num_failed()));
    out.Add("epd_group_failed_calls_total", labels, static_cast<double>(group.num_failed_calls()));
    out.Add("epd_group_staged_bytes_total", labels, static_cast<double>(group.bytes_moved()));
    out.Add("epd_group_open_operations", labels, group.num_open_operations());
    out.Add("epd_group_dropped_rows_total", labels,
            0);  // AddRanks knows of some after their first operation.
    for (const v1::Rank& rank : group.ranks()) {
      if (!absl::StartsWith(rank.phase(), "absent_in_")) continue;
      out.Add("epd_rank_awaited_seconds", with(absl::StrCat(rank.rank())),
              Seconds(rank.phase_age()));
    }
    AddExperts(group, out);
  }
}

// "rank", "node" or "other_node": where routes of `from` to `to` end.
std::string Distance(const v1::Group* group, uint32_t from, uint32_t to) {
  if (from == to) return "rank";
  const auto node_of = [group](uint32_t rank) {
    return group != nullptr && static_cast<int>(rank) < group->ranks_size()
               ? group->ranks(static_cast<int>(rank)).node()
               : "";
  };
  return node_of(from) == node_of(to) ? "node" : "other_node";
}

void AddRanks(const v1::GetFiguresResponse& figures, Exposition& out) {
  std::map<std::pair<std::string, std::string>, const v1::Group*> groups;
  for (const v1::Group& group : figures.groups())
    groups[{group.spec().name(), group.spec().tenant()}] = &group;
  uint64_t num_estimated = 0;
  for (const auto& ranks : figures.ranks()) {
    const Exposition::Labels labels = {ranks.group(), ranks.tenant()};
    const v1::RankFigures& told = ranks.figures();
    const uint32_t n = ranks.num_ranks();
    out.Add("epd_group_dropped_rows_total", labels, static_cast<double>(told.dropped_rows()));
    out.Add("epd_group_padded_rows_total", labels, static_cast<double>(told.padded_rows()));
    num_estimated += told.estimated_prepares();
    const auto cells = static_cast<int>(n * n);
    std::map<std::string, double> routes;
    std::vector<double> waited(n);
    for (int cell = 0; cell < cells; ++cell) {
      const uint32_t row = static_cast<uint32_t>(cell) / n;
      const uint32_t column = static_cast<uint32_t>(cell) % n;
      if (told.waited_seconds_size() == cells) waited[column] += told.waited_seconds(cell);
      if (told.routes_size() == cells && told.routes(cell) > 0)
        routes[Distance(groups[{ranks.group(), ranks.tenant()}], row, column)] +=
            static_cast<double>(told.routes(cell));
    }
    for (const auto& [to, count] : routes)
      out.Add("epd_group_routes_total", {ranks.group(), ranks.tenant(), to}, count);
    for (int rank = 0; rank < told.waits_size(); ++rank)
      out.AddTimes("epd_rank_wait_seconds", {ranks.group(), ranks.tenant(), absl::StrCat(rank)},
                   told.waits(rank).counts(), told.waits(rank).seconds());
    if (told.waited_seconds_size() != cells) continue;
    for (uint32_t rank = 0; rank < n; ++rank)
      out.Add("epd_rank_waited_for_seconds_total",
              {ranks.group(), ranks.tenant(), absl::StrCat(rank)}, waited[rank]);
  }
  out.Add("epd_estimated_prepares_total", {}, static_cast<double>(num_estimated));
}

void AddStaging(const v1::GetFiguresResponse& figures, Exposition& out) {
  std::map<uint64_t, const v1::GroupSpec*> specs;
  for (const v1::Group& group : figures.groups()) specs[group.group_id()] = &group.spec();
  for (const v1::MemoryRegion& region : figures.staging()) {
    const auto first = region.group_ids().empty() ? specs.end() : specs.find(region.group_ids(0));
    Exposition::Labels labels = {region.worker(), "", ""};
    if (first != specs.end())
      labels = {region.worker(), first->second->name(), first->second->tenant()};
    const auto add = [&](const char* name, uint64_t bytes) {
      out.Add(name, labels, static_cast<double>(bytes));
    };
    add("epd_staging_group_committed_bytes", region.committed_bytes());
    add("epd_staging_group_in_use_bytes", region.in_use_bytes());
    add("epd_staging_group_peak_bytes", region.peak_bytes());
    add("epd_staging_group_quarantined_bytes", region.quarantined_bytes());
  }
}

}  // namespace

std::string MetricsText(const v1::GetFiguresResponse& figures, absl::Duration age) {
  Exposition out;
  AddNode(figures, age, out);
  AddWorkers(figures, out);
  AddGroups(figures, out);
  AddRanks(figures, out);
  AddStaging(figures, out);
  return prometheus::TextSerializer().Serialize(out.Take());
}

}  // namespace epd
