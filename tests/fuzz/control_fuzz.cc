// Goal: what epd and a worker say to each other, damaged or of another version, is taken or refused, and ends neither; who
// reads a worker's figures never counts down.
#include <string>
#include <vector>

#include "daemon/node/workers/group_totals.h"
#include "daemon/node/workers/pending_arenas.h"
#include "daemon/worker/shell/control_codec.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/worker.pb.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

void TakeByWorker(const v1::ToWorker& message) {
  (void)LimitsFromProto(message.hello().limits());
  const absl::StatusOr<TenantStart> start = TenantStartFromProto(message.start_tenant());
  if (start.ok()) {
    EPD_FUZZ_CHECK(start->members.size() ==
                   static_cast<size_t>(message.start_tenant().members_size()));
  }
  const absl::Status ended = FromProto(message.end_tenant().status());
  EPD_FUZZ_CHECK(ended.message().size() <= limits::kErrorBytes);
}

void TakeByEpd(const v1::FromWorker& message) {
  PendingArenas arenas;
  // Without descriptors: only arenas that are told by a handle are taken.
  const v1::TenantReady& ready = message.tenant_ready();
  if (arenas.Put(ready, {}).ok()) {
    for (const v1::TenantReady::Arena& arena : ready.arenas())
      EPD_FUZZ_CHECK(!arena.handle().empty());
    v1::Joined joined;
    ReplyJoined reply;
    reply.group = GroupId(ready.group_id());
    reply.formation = Formation(ready.formation());
    EPD_FUZZ_CHECK(arenas.Take(reply, WorkerId{}, joined).ok());
  }
  GroupTotals totals;
  const Incarnation run(1);
  for (int i = 0; i < 2; ++i) {
    totals.Take(run, message.snapshot());
    for (const v1::WorkerSnapshot::Tenant& tenant : message.snapshot().tenants())
      (void)totals.Of(GroupId(tenant.group_id()));
  }
  (void)FromProto(message.ends().cause());
}

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  const bool to_worker = in.Below(2) == 0;
  const std::string_view bytes = in.Rest();
  epd::v1::ToWorker to;
  epd::v1::FromWorker from;
  if (to_worker && to.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    epd::TakeByWorker(to);
  } else if (!to_worker && from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    epd::TakeByEpd(from);
  }
  return 0;
}
