#include "daemon/node/workers/worker_options.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "daemon/codec/codec.h"
#include "daemon/node/workers/wire_address.h"
#include "daemon/observe/log.h"

namespace epd {

WorkerSupervisor::Options MakeWorkerOptions(const Settings& s, PacketChannel::Fds certificates,
                                            uint64_t incarnation, const WorkerName& name) {
  WorkerSupervisor::Options options;
  options.name = ToString(name);
  options.binary = s.worker;
  options.hello.set_incarnation(incarnation);
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
  v1::WorkerHello::Limits& limits = *options.hello.mutable_limits();
  limits.set_operations_per_session(s.max_operations_per_session);
  limits.set_operations_per_uid(s.max_operations_per_uid);
  limits.set_staging_per_tenant(s.max_staging_per_tenant);
  limits.set_staging_per_uid(s.max_staging_per_uid);
  *limits.mutable_undecided() = ToProto(s.max_undecided);
  const WireAddress wire = ChooseWireAddress(s, name);
  options.hello.set_wire_listen(wire.listen);
  options.hello.set_wire_advertise(wire.advertise);
  options.certificates = std::move(certificates);
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

ServedGpus FindServedGpus(const Settings& settings, const WorkerTable& workers) {
  const CudaDevices& wanted = settings.cuda_devices;
  ServedGpus gpus;
  if (settings.cuda_staging_bytes == 0) {
    gpus.why_none = "epd was started with cuda_staging_bytes=0";
    return gpus;
  }
  for (const int32_t ordinal : wanted.ordinals) gpus.workers.insert(WorkerName{ordinal});
  gpus.others = wanted.on_demand;
  if (gpus.workers.empty() && !gpus.others)
    gpus.why_none = "epd was started with cuda_devices=none";
  for (const auto& [name, entry] : workers.all()) {
    if (!name.on_gpu()) continue;
    gpus.workers.insert(name);
    const std::string& uuid = entry->supervisor.figures().ready.cuda().uuid();
    if (!uuid.empty()) gpus.uuids[name] = absl::BytesToHexString(uuid);
  }
  return gpus;
}

}  // namespace epd
