#include "daemon/rpc/node_api/local_trace.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"

namespace epd {
namespace {

constexpr absl::Duration kKeepFor = absl::Seconds(10);
constexpr absl::Duration kMaxKeepFor = absl::Minutes(1);

absl::Duration KeepForOf(const v1::GetTraceRequest& request) {
  return request.has_keep_for() ? FromProto(request.keep_for()) : kKeepFor;
}

// What each worker is asked that serves the group.
std::map<WorkerName, v1::GetTrace> QuestionsOf(const Node& node,
                                               const v1::GetTraceRequest& request) {
  std::map<WorkerName, v1::GetTrace> questions;
  for (const LocalGroupStatus& local : node.control().Groups()) {
    const GroupSpec& spec = local.view.spec;
    if (!request.group().empty() && spec.name != request.group()) continue;
    if (request.has_tenant() && spec.tenant != request.tenant()) continue;
    for (const WorkerName& worker : local.workers)
      questions[worker].add_group_ids(local.view.id.value);
  }
  for (auto& [worker, question] : questions) {
    question.set_open(request.open());
    *question.mutable_keep_for() = ToProto(KeepForOf(request));
    const WorkerEntry* entry = node.workers().at(worker).get();
    for (const v1::TraceCursor& cursor : request.cursors()) {
      const bool same =
          cursor.node() == node.id().value && cursor.worker() == ToString(worker) &&
          cursor.worker_incarnation() == entry->supervisor.figures().worker_incarnation;
      if (same) question.set_after(cursor.next());
    }
  }
  return questions;
}

// The node, its clocks, and the worker's name and run.
v1::NodeTrace DescribeTrace(Node& node, const WorkerName& worker) {
  v1::NodeTrace trace;
  trace.set_node(node.id().value);
  trace.set_worker(ToString(worker));
  trace.set_worker_incarnation(node.workers().at(worker)->supervisor.figures().worker_incarnation);
  trace.set_is_reference(node.coordination().is_here());
  if (std::optional<v1::ClockOffset> clock = node.coordination().CompareClocks())
    *trace.mutable_clock() = *std::move(clock);
  trace.set_monotonic_ns(absl::ToUnixNanos(ClockNow()));
  trace.set_unix_ns(absl::ToUnixNanos(absl::Now()));
  return trace;
}

}  // namespace

absl::Status CheckTraceRequest(const v1::GetTraceRequest& request) {
  if (request.group().empty())
    return absl::InvalidArgumentError("group: got '', expected a group's name");
  const absl::Duration keep_for = KeepForOf(request);
  if (keep_for > absl::ZeroDuration() && keep_for <= kMaxKeepFor) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("keep_for: got ", absl::FormatDuration(keep_for),
                                                 ", expected more than 0 and at most ",
                                                 absl::FormatDuration(kMaxKeepFor)));
}

void TraceLocally(Node& node, const v1::GetTraceRequest& request,
                  std::function<void(v1::LocalTrace)> done) {
  std::map<uint64_t, GroupSpec> specs;
  for (const LocalGroupStatus& local : node.control().Groups())
    specs[local.view.id.value] = local.view.spec;
  node.AskForTraces(QuestionsOf(node, request),
                    [&node, specs, done = std::move(done)](const TraceQuestions::Answers& answers) {
                      v1::LocalTrace out;
                      for (const auto& [worker, answer] : answers) {
                        v1::NodeTrace& trace = *out.add_traces();
                        trace = DescribeTrace(node, worker);
                        *trace.mutable_page() = answer.page();
                        for (v1::RankTrace& rank : *trace.mutable_page()->mutable_ranks()) {
                          const auto spec = specs.find(rank.group_id());
                          if (spec == specs.end()) continue;
                          rank.set_group(spec->second.name);
                          rank.set_tenant(spec->second.tenant);
                          rank.set_num_ranks(spec->second.num_ranks);
                        }
                      }
                      done(std::move(out));
                    });
}

bool AskTraces(Node& node, const v1::GetTraceRequest& request,
               std::function<void(v1::LocalTrace)> done) {
  return node.loop()
      .PostRequest([&node, request, done = std::move(done)] { TraceLocally(node, request, done); })
      .ok();
}

}  // namespace epd
