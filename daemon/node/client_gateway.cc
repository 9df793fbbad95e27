#include "daemon/node/client_gateway.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

constexpr absl::Duration kLongestJoin = absl::Hours(24 * 365);
// Of one session; a client must not fill epd's memory with names.
constexpr size_t kMaxDevices = 4096;
constexpr size_t kMaxDeviceBytes = 64;

v1::ServerMessage JoinFailed(uint64_t request, const absl::Status& status) {
  v1::ServerMessage message;
  message.mutable_join_failed()->set_request_id(request);
  *message.mutable_join_failed()->mutable_status() = ToProto(status);
  return message;
}

}  // namespace

ClientGateway::ClientGateway(Options options, EventSink sink, WorkerGateway& worker)
    : options_(std::move(options)), sink_(std::move(sink)), worker_(worker) {}

void ClientGateway::OnAttached(const AttachSession& session) {
  worker_.AddSession(session);
  SessionAttached event;
  event.session = session.id;
  event.pid = session.peer.pid;
  event.uid = session.peer.uid;
  event.host = options_.host;
  event.name = session.client_name;
  sink_(event);
}

void ClientGateway::OnDetached(const AttachSession& session, const absl::Status& reason,
                               bool process_alive) {
  devices_.erase(session.id);
  worker_.EndSession(session, reason, process_alive);
  sink_(SessionGone{session.id, reason});
}

std::string ClientGateway::DeviceOf(SessionId session, const std::string& group, Rank rank) const {
  const auto held = devices_.find(session);
  if (held == devices_.end()) return "";
  const auto device = held->second.find({group, rank});
  return device == held->second.end() ? "" : device->second;
}

void ClientGateway::OnClientMessage(const AttachSession& session,
                                    const v1::ClientMessage& message) {
  if (message.has_join()) return OnJoin(session, message.join());
  if (message.has_drained()) return OnDrained(session, message.drained());
  if (message.has_leave()) {
    sink_(LeaveRequested{session.id, RequestId(message.leave().request_id()),
                         GroupId(message.leave().group_id())});
  }
}

void ClientGateway::OnJoin(const AttachSession& session, const v1::Join& join) {
  absl::StatusOr<GroupSpec> spec = FromProto(join.spec(), options_.defaults);
  absl::Status bad = spec.status();
  if (bad.ok()) bad = Validate(*spec);
  if (bad.ok()) bad = options_.check_room(spec->name);
  if (bad.ok() && join.request_id() == 0)
    bad = absl::InvalidArgumentError("request_id: got 0, expected any other number");
  if (!bad.ok()) return server_->Send(session.id, JoinFailed(join.request_id(), bad));

  JoinRequested event;
  event.session = session.id;
  event.request = RequestId(join.request_id());
  for (const uint32_t rank : join.ranks()) event.ranks.emplace_back(rank);
  auto& devices = devices_[session.id];
  for (int i = 0; i < std::min(join.ranks_size(), join.devices_size()); ++i) {
    if (devices.size() >= kMaxDevices) break;
    devices[{spec->name, Rank(join.ranks(i))}] = join.devices(i).substr(0, kMaxDeviceBytes);
  }
  event.min_epoch = Epoch(join.min_epoch());
  absl::Duration allowed = spec->deadlines.form;
  if (join.has_deadline())
    allowed = std::clamp(FromProto(join.deadline()), absl::ZeroDuration(), kLongestJoin);
  event.deadline = MonotonicNow() + allowed;
  event.proposed = GroupId(random_() | 1);
  event.spec = *std::move(spec);
  sink_(std::move(event));
}

void ClientGateway::OnDrained(const AttachSession& session, const v1::Drained& drained) {
  SessionDrained event;
  event.session = session.id;
  event.group = GroupId(drained.group_id());
  event.formation = Formation(drained.formation());
  for (const v1::Drained::Count& count : drained.counts()) {
    ExecutionCount out;
    if (count.program().size() != out.program.size()) {
      return server_->End(session.id, absl::InvalidArgumentError(absl::StrCat(
                                          "Drained: got a program of ", count.program().size(),
                                          " bytes, expected ", out.program.size())));
    }
    out.rank = Rank(count.rank());
    std::copy(count.program().begin(), count.program().end(), out.program.begin());
    out.begun = count.begun();
    event.counts.push_back(out);
  }
  sink_(std::move(event));
}

}  // namespace epd
