// Node: its workers, and what they are asked.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "daemon/node/attach/codec.h"
#include "daemon/node/node.h"
#include "daemon/node/workers/wire_address.h"
#include "daemon/observe/log.h"

namespace epd {
namespace {

// How long a question for status waits for a worker that may be stopped; well within the second
// that is promised.
constexpr absl::Duration kFiguresPatience = absl::Milliseconds(300);

}  // namespace

WorkerSupervisor::Options Node::WorkerOptions(const WorkerName& name) const {
  const Settings& s = settings();
  WorkerSupervisor::Options options;
  options.name = ToString(name);
  options.binary = s.worker;
  options.hello.set_incarnation(incarnation_);
  options.hello.set_staging_bytes(s.staging_bytes);
  options.hello.set_node(s.node);
  options.hello.set_simd(s.simd);
  *options.hello.mutable_spin() = ToProto(s.spin);
  options.hello.set_nccl_library(s.nccl_library);
  options.hello.set_cuda_staging_bytes(s.cuda_staging_bytes);
  options.hello.set_staging(s.staging);
  if (name.on_gpu()) options.hello.set_cuda_device(name.cuda_device);
  *options.hello.mutable_cuda_limit() = ToProto(s.cuda_limit);
  options.hello.set_max_num_sms(static_cast<int32_t>(s.max_num_sms));
  const WireAddress wire = WireAddressOf(s, name);
  options.hello.set_wire_listen(wire.listen);
  options.hello.set_wire_advertise(wire.advertise);
  options.hello.set_tls_ca(s.tls_ca);
  options.hello.set_tls_cert(s.tls_cert);
  options.hello.set_tls_key(s.tls_key);
  if (!wire.problem.empty()) {
    Log(LogLevel::kWarn, "the worker takes no streams of other nodes",
        {{"worker", options.name}, {"why", wire.problem}});
  }
  options.backoff.min = s.worker_backoff_min;
  options.backoff.max = s.worker_backoff_max;
  options.heartbeat = s.worker_heartbeat;
  options.stuck = s.worker_stuck;
  return options;
}

absl::Status Node::AddWorkers() {
  absl::Status added = workers_.Add(kCpuWorker);
  for (const WorkerName& name : Gpus().workers) {
    if (added.ok()) added = workers_.Add(name);
  }
  return added;
}

ServedGpus Node::Gpus() const {
  const CudaDevices& wanted = settings().cuda_devices;
  ServedGpus gpus;
  if (settings().cuda_staging_bytes == 0) {
    gpus.why_none = "epd was started with cuda_staging_bytes=0";
    return gpus;
  }
  for (const int32_t ordinal : wanted.ordinals) gpus.workers.insert(WorkerName{ordinal});
  gpus.others = wanted.on_demand;
  if (gpus.workers.empty() && !gpus.others)
    gpus.why_none = "epd was started with cuda_devices=none";
  for (const auto& [name, entry] : workers_.all()) {
    if (!name.on_gpu()) continue;
    gpus.workers.insert(name);
    const std::string& uuid = entry->supervisor.figures().ready.cuda().uuid();
    if (!uuid.empty()) gpus.uuids[name] = absl::BytesToHexString(uuid);
  }
  return gpus;
}

void Node::WithFreshFigures(std::function<void()> then) {
  role_.AssertHeld();
  const absl::Time now = MonotonicNow();
  for (const auto& [name, entry] : workers_.all()) entry->supervisor.AskForSnapshot(now);
  if (!OwesFigures(now)) return then();
  waiting_.push_back({now, now + kFiguresPatience, std::move(then)});
}

// Whether a worker that can be waited for has not answered since `since`. One that owes an answer for
// longer is stopped or stuck; waiting for it again would only make everybody wait.
bool Node::OwesFigures(absl::Time since) const {
  for (const auto& [name, entry] : workers_.all()) {
    const WorkerSupervisor::Figures& figures = entry->supervisor.figures();
    if (!entry->supervisor.running() || since > figures.asked_at + kFiguresPatience) continue;
    if (figures.snapshot_at < since) return true;
  }
  return false;
}

void Node::AskForPast(const std::vector<GroupId>& groups, uint32_t max_of_rank,
                      PastQuestions::Done done) {
  role_.AssertHeld();
  std::vector<PastQuestions::Asked> served;
  for (const LocalGroupStatus& local : control_.Groups()) {
    if (std::find(groups.begin(), groups.end(), local.view.id) == groups.end()) continue;
    for (const WorkerName& name : local.workers) {
      const WorkerEntry* entry = workers_.Find(name);
      if (entry != nullptr && entry->supervisor.running()) served.push_back({local.view.id, name});
    }
  }
  past_.Ask(served, max_of_rank, MonotonicNow(), std::move(done));
}

void Node::AnswerWaiting(absl::Time now) {
  // An answer to a question that was asked before does just as well: it is as fresh as the
  // heartbeat.
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    if (now < first.until && OwesFigures(first.asked)) return;
    const std::function<void()> then = std::move(waiting_.front().then);
    waiting_.pop_front();
    then();
  }
}

}  // namespace epd
