#include "daemon/metrics/metric_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/time_buckets.h"

namespace epd {
namespace {

constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr size_t kWorkers = 10;  // The CPU's and eight GPUs'; more are folded.
constexpr size_t kGroups = 120;  // Tenants of groups.
constexpr size_t kNodes = 130;   // As many as a worker tells apart, which are a group's at most.

absl::string_view Name(MetricKind kind) {
  return kind == kGauge ? "gauge" : kind == kCounter ? "counter" : "histogram";
}

}  // namespace

const std::vector<MetricRow>& MetricTable() {
  // clang-format off
  static const auto* const kTable = new std::vector<MetricRow>{
      // ---- the node ----
      {"epd_build_info", kGauge, {"version", "node"}, 2, "1."},
      {"epd_up_seconds", kGauge, {}, 1, "Since epd's start.", "EpdAbsent"},
      {"epd_health", kGauge, {"state"}, 4, "1 for the state that the node is in: ok, degraded or unhealthy.", "EpdUnhealthy, EpdDegraded"},
      {"epd_figures_age_seconds", kGauge, {}, 1, "How old these figures are: about 1 at most, unless the control thread does not answer.", "EpdFiguresStale"},
      {"epd_series", kGauge, {}, 1, "Series in this text, but for this one and the next."},
      {"epd_series_folded", kGauge, {}, 1, "Label sets that had no room and are added up as `other`."},
      {"epd_sessions", kGauge, {}, 1, "Attached clients."},
      {"epd_limit", kGauge, {"setting"}, 10, "A limit of this node, by the setting that says it.", "EpdNearLimit"},
      {"epd_limit_used", kGauge, {"setting"}, 10, "What is used of it.", "EpdNearLimit"},
      {"epd_coordinator_connected", kGauge, {}, 1, "1: this epd coordinates, or is connected to the one that does.", "EpdNoCoordinator"},
      {"epd_coordinator_leads", kGauge, {}, 1, "1: this epd coordinates; of a cluster's nodes one does."},
      {"epd_coordinator_term", kGauge, {"coordinator"}, 2, "Of the node that coordinates, as the store (rendezvous) says it: the revision of its key, which grows with each election. Absent without a store, and while nobody coordinates."},
      {"epd_coordinator_lease_left_seconds", kGauge, {}, 1, "Until this node takes its lease at the store for over, half a second before the store does; renewed each third of `lease`. 0: it could not be. Absent without a store."},
      {"epd_certificate_left_seconds", kGauge, {}, 1, "Until the end of the certificate that links show; absent without TLS.", "EpdCertificateEnds"},
      // ---- workers ----
      {"epd_worker_up", kGauge, {"worker"}, kWorkers, "1: the worker runs.", "EpdWorkerDown"},
      {"epd_workers_stale", kGauge, {}, 1, "1: a worker does not answer, and its figures are the last known.", "EpdWorkerSilent"},
      {"epd_worker_restarts_total", kCounter, {"worker", "cause"}, 100, "Ends of the worker's process: exited, signal_N, unanswered (killed after worker_stuck), killed_by_epd, not_started.", "EpdWorkerRestarts"},
      {"epd_operations_total", kCounter, {"worker", "kind", "outcome"}, 500, "Operations that the worker has decided, by gRPC's code; each once, however many ranks are here. Receive buffers that overflow are RESOURCE_EXHAUSTED.", "EpdOperationsFail"},
      {"epd_operation_phase_seconds", MetricKind::kHistogram, {"worker", "kind", "phase"}, 4000, "How long operations stayed in a phase: announce until all ranks have called, admit until there is staging, copy until all rows are in it, move while the worker moves them (between nodes also copies a second time), pull until all ranks have theirs.", "EpdStagingWaits", kTimeBounds},
      {"epd_wire_sent_bytes_total", kCounter, {"node"}, kNodes, "Rows with their frames to another node, since the start of the worker."},
      {"epd_wire_received_bytes_total", kCounter, {"node"}, kNodes, "Rows with their frames from another node."},
      {"epd_wire_queue_length", kGauge, {"node", "of"}, 2 * kNodes, "What waits to be sent to another node: messages, and rows, which are those of one rank and one operation."},
      // ---- groups; a series per tenant ----
      {"epd_groups", kGauge, {"state"}, 9, "Groups by state."},
      {"epd_groups_by_link", kGauge, {"link"}, 7, "Groups that serve here by how their rows go, as `epctl groups` says of each: `shared_memory`, `device_memory`, `streams`, `peer_memory`, `peer_memory_and_nccl`, `nccl`, `nccl_ep`."},
      {"epd_group_ready", kGauge, {"group", "tenant"}, kGroups, "1: READY, 0: in any other state.", "EpdGroupNotReady"},
      {"epd_group_transitions_total", kCounter, {"event", "to"}, 80, "What happened to groups here, `none`, or was done by this coordinator, by its reason; to: the state that followed.", "EpdGroupsReform"},
      {"epd_group_epoch", kGauge, {"group", "tenant"}, kGroups, "Grows with each new communicator."},
      {"epd_group_formation", kGauge, {"group", "tenant"}, kGroups, "Grows each time that the members change or meet anew."},
      {"epd_group_generation", kGauge, {"group", "tenant"}, kGroups, "Grows with each failure that ended all open operations of the formation."},
      {"epd_group_operations_total", kCounter, {"group", "tenant", "outcome"}, 2 * kGroups, "Operations that ended: ok or failed."},
      {"epd_group_failed_calls_total", kCounter, {"group", "tenant"}, kGroups, "Calls of this node's ranks that were answered with an error."},
      {"epd_group_staged_bytes_total", kCounter, {"group", "tenant"}, kGroups, "Bytes that ranks of this node staged in operations that ended well."},
      {"epd_group_routes_total", kCounter, {"group", "tenant", "to"}, 3 * kGroups, "Routes of tokens of this node's ranks, since the formation: to the rank itself, to another rank of its node, to another node."},
      {"epd_group_dropped_rows_total", kCounter, {"group", "tenant"}, kGroups, "Rows that found no room with ranks of this node (drop_on_overflow), since the formation.", "EpdRowsDropped"},
      {"epd_group_padded_rows_total", kCounter, {"group", "tenant"}, kGroups, "Rows without a token in receive buffers of this node's ranks, which fill each expert's zone up to the alignment, as prepares planned them, since the formation."},
      {"epd_estimated_prepares_total", kCounter, {}, 1, "Prepares of which a worker read the counts of some experts only and took them for all, of all groups since their formations; where it grows, routes and padded rows of some group are estimates: epctl top -o json says of which."},
      {"epd_group_open_operations", kGauge, {"group", "tenant"}, kGroups, "Operations under way."},
      {"epd_rank_awaited_seconds", kGauge, {"group", "tenant", "rank"}, 200, "Since when the others wait for a rank that has not come to the group's oldest operation.", "EpdRankAwaited"},
      {"epd_rank_waited_for_seconds_total", kCounter, {"group", "tenant", "rank"}, 1000, "How long all other ranks together waited for the one that announced last, since the formation; counted by the node that leads the group.", "EpdRankLags"},
      {"epd_rank_wait_seconds", MetricKind::kHistogram, {"group", "tenant", "rank"}, 640, "The same by how long each wait was: of each operation what each other rank waited for the one that announced last, which is the label. For the first 79 ranks of a node's groups; the counter above has all.", "", kWaitBounds},
      {"epd_expert_routes_total", kCounter, {"group", "tenant", "expert"}, 690, "Routes of tokens of this node's ranks to an expert, as prepares said."},
      {"epd_expert_imbalance_ratio", kGauge, {"group", "tenant"}, kGroups, "Routes of the busiest expert by those of the mean one; of this node's ranks.", "EpdExpertsUnbalanced"},
      // ---- staging ----
      {"epd_staging_pool_bytes", kGauge, {}, 1, "The budget, staging_bytes."},
      {"epd_staging_committed_bytes", kGauge, {}, 1, "Pages that exist."},
      {"epd_staging_peak_bytes", kGauge, {}, 1, "The most that were committed at once.", "EpdStagingFull"},
      {"epd_staging_group_committed_bytes", kGauge, {"worker", "group", "tenant"}, 100, "Of one set of arenas; where several groups share it, of the first."},
      {"epd_staging_group_in_use_bytes", kGauge, {"worker", "group", "tenant"}, 100, "The same in operations now."},
      {"epd_staging_group_peak_bytes", kGauge, {"worker", "group", "tenant"}, 100, "The most of it."},
      {"epd_staging_group_quarantined_bytes", kGauge, {"worker", "group", "tenant"}, 100, "Released, but a process that lives may still write it.", "EpdStagingQuarantined"},
  };
  // clang-format on
  return *kTable;
}

size_t SeriesOf(const MetricRow& row) {
  // Its buckets, with the one above all bounds, sum and count.
  return row.kind == MetricKind::kHistogram ? row.bounds.size() + 3 : 1;
}

std::string MetricsDocument() {
  std::string text =
      "# Metrics\n\n"
      "What `metrics_listen` serves at `/metrics`, made by `bazel run "
      "//daemon/metrics:metrics_document -- "
      "$PWD/deploy/metrics.md`.\nCounters begin anew with what counts them: a worker, or a "
      "formation where the text says so. *Most*: series of a name; label\nsets above it are added "
      "up in one whose "
      "labels are all `other`. Alerts stand in `prometheus/epd.rules.yml`.\n\n"
      "| name | kind | labels | most | meaning | alert |\n|---|---|---|--:|---|---|\n";
  for (const MetricRow& row : MetricTable()) {
    absl::StrAppend(&text, "| `", row.name, "` | ", Name(row.kind), " | ",
                    absl::StrJoin(row.labels, ", "), " | ", row.max_series, " | ", row.meaning,
                    " | ", row.alert, " |\n");
  }
  return text;
}

}  // namespace epd
