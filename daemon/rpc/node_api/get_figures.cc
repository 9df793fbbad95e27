#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_answers.h"

namespace epd {
namespace {

void FillWorker(const WorkerEntry& entry, v1::GetFiguresResponse::Worker& out) {
  const WorkerSupervisor::Figures& figures = entry.supervisor.figures();
  out.set_worker(ToString(entry.name));
  *out.mutable_kinds() = figures.snapshot.kinds();
  for (const auto& [cause, count] : figures.restarts) {
    v1::GetFiguresResponse::Restart& restart = *out.add_restarts();
    restart.set_cause(cause);
    restart.set_count(count);
  }
}

// Adds what one worker counts of a formation: waits are told by one worker alone, routes by each of its ranks.
void Add(const v1::RankFigures& told, v1::RankFigures& sum) {
  sum.set_dropped_rows(sum.dropped_rows() + told.dropped_rows());
  sum.set_padded_rows(sum.padded_rows() + told.padded_rows());
  sum.set_estimated_prepares(sum.estimated_prepares() + told.estimated_prepares());
  if (told.waited_seconds_size() > 0) *sum.mutable_waited_seconds() = told.waited_seconds();
  if (told.waits_size() > 0) *sum.mutable_waits() = told.waits();
  if (told.routes_size() == 0) return;
  if (sum.routes_size() != told.routes_size()) {
    *sum.mutable_routes() = told.routes();
    return;
  }
  for (int i = 0; i < told.routes_size(); ++i) sum.set_routes(i, sum.routes(i) + told.routes(i));
}

void FillRanks(const Node& node, const v1::Group& group, v1::GetFiguresResponse& out) {
  v1::RankFigures sum;
  for (const auto& [name, entry] : node.workers()) {
    for (const auto& tenant : entry->supervisor.figures().snapshot.tenants()) {
      if (tenant.group_id() == group.group_id() && !tenant.ended()) Add(tenant.ranks(), sum);
    }
  }
  if (sum.ByteSizeLong() == 0) return;
  v1::GetFiguresResponse::Ranks& ranks = *out.add_ranks();
  ranks.set_group(group.spec().name());
  ranks.set_tenant(group.spec().tenant());
  ranks.set_num_ranks(group.spec().num_ranks());
  *ranks.mutable_figures() = std::move(sum);
}

void FillHistory(const GroupHistory& history, v1::GetFiguresResponse& out) {
  for (const auto& [what, count] : history.counts()) {
    v1::GetFiguresResponse::TransitionCount& counted = *out.add_transitions();
    counted.set_event(std::string(Name(what.first)));
    counted.set_to(std::string(Name(what.second)));
    counted.set_count(count);
  }
  for (const auto& [at, transition] : history.newest()) {
    v1::GroupTransition& shown = *out.add_last_transitions();
    shown.set_group(transition.name);
    shown.set_group_id(transition.group.value);
    shown.set_epoch(transition.epoch.value);
    shown.set_formation(transition.formation.value);
    shown.set_from(std::string(Name(transition.from)));
    shown.set_to(std::string(Name(transition.to)));
    shown.set_event(std::string(Name(transition.event)));
    if (!transition.why.ok()) *shown.mutable_cause() = ToProto(transition.why);
    *shown.mutable_age() = ToProto(MonotonicNow() - at);
  }
}

void AddLimit(const char* what, uint64_t used, uint64_t limit, v1::GetFiguresResponse& out) {
  v1::GetFiguresResponse::Limit& line = *out.add_limits();
  line.set_what(what);
  line.set_used(used);
  line.set_limit(limit);
}

}  // namespace

absl::Status Fill(const Node& node, const v1::GetFiguresRequest&, v1::GetFiguresResponse& out) {
  absl::Status filled = Fill(node, v1::GetStatusRequest(), *out.mutable_status());
  v1::GetMemoryResponse memory;
  filled.Update(Fill(node, v1::GetMemoryRequest(), memory));
  for (v1::MemoryRegion& region : *memory.mutable_regions()) {
    if (region.kind() == "staging") *out.add_staging() = std::move(region);
  }
  for (const GroupStatus& group : KnownGroups(node)) {
    *out.add_groups() = DescribeGroup(node, group);
    FillRanks(node, out.groups(out.groups_size() - 1), out);
  }
  for (const auto& [name, entry] : node.workers()) FillWorker(*entry, *out.add_workers());
  FillHistory(node.history(), out);
  AddLimit("max_sessions", out.status().num_sessions(), node.settings().max_sessions, out);
  AddLimit("max_groups", node.control().Groups().size(), node.settings().max_groups, out);
  AddLimit("staging_bytes", out.status().pool_committed_bytes(), node.settings().staging_bytes,
           out);
  return filled;
}

bool AskFigures(Node& node, std::function<void(v1::GetFiguresResponse)> done) {
  return node.loop()
      .PostRequest([&node, done = std::move(done)] {
        node.WithFreshFigures([&node, done] {
          v1::GetFiguresResponse figures;
          if (Fill(node, v1::GetFiguresRequest(), figures).ok()) done(std::move(figures));
        });
      })
      .ok();
}

}  // namespace epd
