#include "daemon/node/attach/client_gateway.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/node/random_number.h"
#include "proto/epd/v1/features.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr absl::Duration kLongestJoin = absl::Hours(24 * 365);
// A session keeps no more, so that a client cannot fill epd's memory with names.
constexpr size_t kMaxDetails = 4096;
constexpr size_t kMaxWhyBytes = 1024;  // Of a rank that leaves.

absl::Status CheckDetails(const GroupSpec& spec, const v1::Join& join) {
  const auto too_long = [&](const char* field, size_t got, size_t limit) {
    return absl::InvalidArgumentError(absl::StrCat("group=", Title(spec), " ", field, ": got ", got,
                                                   " bytes, expected at most ", limit));
  };
  if (join.program().size() > limits::kNameBytes)
    return too_long("program", join.program().size(), limits::kNameBytes);
  if (join.metadata().size() > limits::kMetadataBytes)
    return too_long("metadata", join.metadata().size(), limits::kMetadataBytes);
  return absl::OkStatus();
}

}  // namespace

ClientGateway::ClientGateway(Options options, EventSink sink, WorkerTable& workers)
    : options_(std::move(options)), sink_(std::move(sink)), workers_(workers) {}

void ClientGateway::OnAttached(const AttachSession& session) {
  if (WorkerEntry* cpu = workers_.Find(kCpuWorker)) cpu->gateway.AddSession(session);
  sink_(SessionAttached{session.id, session.peer.pid, session.peer.uid, options_.host,
                        session.client_name, session.client_version, session.started});
}

void ClientGateway::OnDetached(const AttachSession& session, const absl::Status& reason,
                               bool process_alive) {
  details_.erase(session.id);
  workers_.EndSession(session, reason, process_alive && options_.holds_staging(session.id));
  sink_(SessionGone{session.id, reason});
}

const ClientGateway::RankDetails* ClientGateway::FindDetails(SessionId session,
                                                             const std::string& group,
                                                             Rank rank) const {
  const auto held = details_.find(session);
  if (held == details_.end()) return nullptr;
  const auto details = held->second.find({group, rank});
  return details == held->second.end() ? nullptr : &details->second;
}

void ClientGateway::KeepDetails(SessionId session, const v1::Join& join) {
  auto& kept = details_[session];
  for (int i = 0; i < join.ranks_size() && kept.size() < kMaxDetails; ++i) {
    RankDetails& details = kept[{join.spec().name(), Rank(join.ranks(i))}];
    details.device =
        i < join.devices_size() ? text::Clean(join.devices(i), limits::kDeviceNameBytes) : "";
    details.program = join.program();
    details.metadata = text::Clean(join.metadata(), limits::kMetadataBytes);
  }
}

void ClientGateway::OnClientMessage(const AttachSession& session,
                                    const v1::ClientMessage& message) {
  if (message.has_join()) return OnJoin(session, message.join());
  if (message.has_drained()) return OnDrained(session, message.drained());
  if (message.has_leave()) {
    const std::string why = text::Clean(message.leave().why(), kMaxWhyBytes);
    sink_(LeaveRequested{session.id, RequestId(message.leave().request_id()),
                         GroupId(message.leave().group_id()),
                         why.empty() ? absl::OkStatus() : absl::ResourceExhaustedError(why)});
  }
}

absl::Status ClientGateway::EnterWorker(const AttachSession& session, const GroupSpec& spec,
                                        const WorkerName& name) {
  if (session.slots.count(name) > 0) return absl::OkStatus();
  if ((session.features & features::kTakesSlotsOfFurtherWorkers) == 0) {
    return absl::UnimplementedError(absl::StrCat(
        "group=", Title(spec), " backend=", spec.backend, ": this client library (",
        session.client_version, ") knows one worker per node; upgrade it, or ask for backend=cpu"));
  }
  if (absl::Status added = workers_.Add(name); !added.ok()) return added;
  if (absl::Status made = server_->OpenSlots(session.id, name); !made.ok()) return made;
  workers_.Find(name)->gateway.AddSession(session);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WorkerName>> ClientGateway::EnterWorkers(const AttachSession& session,
                                                                    const GroupSpec& spec,
                                                                    const v1::Join& join) {
  const std::vector<std::string> devices(join.devices().begin(), join.devices().end());
  absl::StatusOr<std::vector<WorkerName>> names =
      ChooseWorkers(spec, devices, options_.served_gpus());
  if (!names.ok()) return names;
  for (const WorkerName& name : *names) {
    if (absl::Status entered = EnterWorker(session, spec, name); !entered.ok()) return entered;
  }
  return names;
}

void ClientGateway::OnJoin(const AttachSession& session, const v1::Join& join) {
  absl::StatusOr<GroupSpec> spec = FromProto(join.spec(), options_.defaults);
  absl::Status bad = spec.status();
  if (bad.ok()) bad = Validate(*spec);
  if (bad.ok()) bad = CheckServed(*spec);
  if (bad.ok() && join.request_id() == 0)
    bad = absl::InvalidArgumentError("request_id: got 0, expected any other number");
  if (bad.ok()) bad = CheckDetails(*spec, join);
  absl::StatusOr<std::vector<WorkerName>> workers = std::vector<WorkerName>();
  if (bad.ok()) workers = EnterWorkers(session, *spec, join);
  bad.Update(workers.status());
  if (!bad.ok()) return server_->Send(session.id, JoinFailed(join.request_id(), bad));

  KeepDetails(session.id, join);
  const absl::Duration allowed =
      join.has_deadline()
          ? std::clamp(FromProto(join.deadline()), absl::ZeroDuration(), kLongestJoin)
          : spec->deadlines.form;
  JoinRequested event{.session = session.id,
                      .request = RequestId(join.request_id()),
                      .spec = *std::move(spec),
                      .min_epoch = Epoch(join.min_epoch()),
                      .deadline = MonotonicNow() + allowed,
                      .proposed = GroupId(RandomNumber()),
                      .workers = *std::move(workers),
                      .limits = options_.limits()};
  for (const uint32_t rank : join.ranks()) event.ranks.emplace_back(rank);
  EPD_FAILPOINT("epd.join.asked");
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
    out.failed = count.failed();
    event.counts.push_back(out);
  }
  EPD_FAILPOINT("epd.drained.received");
  sink_(std::move(event));
}

void ClientGateway::Save(v1::HandoverClients& clients) const {
  for (v1::HandoverClients::Session& session : *clients.mutable_sessions()) {
    const auto said = details_.find(SessionId(session.id()));
    if (said == details_.end()) continue;
    for (const auto& [rank, details] : said->second) {
      v1::HandoverClients::Details& added = *session.add_details();
      added.set_group(rank.first);
      added.set_rank(rank.second.value);
      added.set_device(details.device);
      added.set_program(details.program);
      added.set_metadata(details.metadata);
    }
  }
}

void ClientGateway::Restore(const v1::HandoverClients& clients) {
  for (const v1::HandoverClients::Session& session : clients.sessions()) {
    for (const v1::HandoverClients::Details& said : session.details()) {
      details_[SessionId(session.id())][{said.group(), Rank(said.rank())}] = {
          said.device(), said.program(), said.metadata()};
    }
  }
}

}  // namespace epd
