#include "daemon/node/effect_sender.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/codec/codec.h"
#include "daemon/control/formation_errors.h"
#include "daemon/node/workers/worker_codec.h"
#include "daemon/observe/log.h"
#include "daemon/observe/user_log.h"
#include "proto/epd/v1/features.h"
#include "proto/epd/v1/limits.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

std::string StateName(GroupState state) {
  return state == GroupState::kCount ? "none" : std::string(Name(state));
}

// What everybody wanted is no warning. The way to the first READY is told by "joined", the end of a group that its
// members have left by "session ended".
LogLevel ChooseLevel(const GroupTransition& e) {
  const bool forms = e.from == GroupState::kCount || e.from == GroupState::kForming ||
                     e.from == GroupState::kBootstrapping;
  switch (e.to) {
    case GroupState::kForming:
    case GroupState::kBootstrapping:
      return LogLevel::kDebug;
    case GroupState::kReady:
      return forms ? LogLevel::kDebug : LogLevel::kInfo;
    case GroupState::kDegraded:
      return absl::StrContains(e.why.message(), " has left;") ? LogLevel::kInfo : LogLevel::kWarn;
    case GroupState::kReforming:
      return LogLevel::kWarn;
    case GroupState::kClosed:
      if (absl::IsCancelled(e.why)) return LogLevel::kDebug;
      // The last process has gone, or an operator closed it.
      return absl::IsUnavailable(e.why) || e.from == GroupState::kDraining ? LogLevel::kInfo
                                                                           : LogLevel::kWarn;
    default:
      return LogLevel::kInfo;
  }
}

}  // namespace

// clang-format keeps one line per effect.
struct EffectSender::NodeSwitch {
  EffectSender& sender;
  Targets& to;

  void operator()(const SendReport& e) const {
    EPD_FAILPOINT_SEND("epd.report.send", to.send_report(e.report));
  }
  void operator()(const StartTenant& e) const { sender.Start(e); }
  void operator()(const EndTenant& e) const {
    EPD_FAILPOINT_SEND("epd.tenant.end", to.workers.Send(e.to, ToProto(e)));
  }
  void operator()(const ForgetArenas& e) const {
    for (const auto& [name, entry] : to.workers.all()) {
      entry->arenas.Forget(e.group);
      entry->gates.Forget(e.group);
    }
  }
  void operator()(const DrainTenant& e) const { to.workers.Send(e.to, ToProto(e)); }
  void operator()(const MakeUniqueId& e) const { to.workers.Send(e.to, ToProto(e)); }
  void operator()(const InitCommunicator& e) const { to.workers.Send(e.to, ToProto(e)); }
  void operator()(const ReplyJoined& e) const { sender.Reply(e); }
  void operator()(const ReplyFailed& e) const {
    to.clients.Send(e.session, JoinFailed(e.request.value, e.status));
  }
  void operator()(const ReplyLeft& e) const {
    v1::ServerMessage message;
    message.mutable_left()->set_request_id(e.request.value);
    *message.mutable_left()->mutable_status() = ToProto(e.status);
    EPD_FAILPOINT_SEND("epd.left.send", to.clients.Send(e.session, message));
  }
  void operator()(const NotifyReform& e) const {
    v1::ServerMessage message;
    v1::Reform& reform = *message.mutable_reform();
    reform.set_group_id(e.group.value);
    reform.set_formation(e.formation.value);
    *reform.mutable_cause() = ToProto(e.cause);
    reform.set_wait(e.wait);
    EPD_FAILPOINT_SEND("epd.reform.send", to.clients.Send(e.session, message));
  }
  void operator()(const NotifyDraining& e) const {
    v1::ServerMessage message;
    message.mutable_group_draining()->set_group_id(e.group.value);
    *message.mutable_group_draining()->mutable_status() = ToProto(e.cause);
    to.clients.Send(e.session, message);
  }
  void operator()(const NotifyGroupEnded& e) const {
    v1::ServerMessage message;
    message.mutable_group_ended()->set_group_id(e.group.value);
    *message.mutable_group_ended()->mutable_status() = ToProto(e.status);
    to.clients.Send(e.session, message);
  }
  void operator()(const EndSession& e) const { to.clients.End(e.session, e.status); }
  void operator()(const GroupTransition& e) const {
    sender.history_.Note(MonotonicNow(), e);
    if (e.to == GroupState::kClosed) (*this)(ForgetArenas{e.group});
    LogOfUser(kNoUid, ChooseLevel(e), "group transition",
              {{"group", e.name},
               {"group_id", e.group.value},
               {"epoch", e.epoch.value},
               {"rank", "all"},
               {"formation", e.formation.value},
               {"from", StateName(e.from)},
               {"to", StateName(e.to)},
               {"why", e.why.message()}});
  }
  void operator()(const RankContested& e) const {
    // A run that waits for the one before is no mistake by itself.
    LogOfUser(kNoUid, e.rival.waits ? LogLevel::kInfo : LogLevel::kWarn, "rank contested",
              {{"group", e.name},
               {"group_id", e.group.value},
               {"epoch", e.epoch.value},
               {"rank", e.rival.who.rank.value},
               {"why", DescribeRival(e.rival)}});
  }
  void operator()(const RpcDone& e) const { to.requests.Finish(e.request, {e.status, e.group}); }
  void operator()(const ShutdownDone&) const { to.shutdown_done(); }
};

void EffectSender::Send(const NodeEffect& effect) { std::visit(NodeSwitch{*this, to_}, effect); }

void EffectSender::Send(const RendezvousEffect& effect) {
  if (const auto* view = std::get_if<SendView>(&effect)) {
    EPD_FAILPOINT_SEND("epd.view.send", to_.send_view(view->view));
    return;
  }
  const auto& e = std::get<GroupTransition>(effect);
  history_.Note(MonotonicNow(), e);
  Log(LogLevel::kDebug, "coordinator transition",
      {{"group", e.name},
       {"group_id", e.group.value},
       {"epoch", e.epoch.value},
       {"rank", "all"},
       {"formation", e.formation.value},
       {"from", StateName(e.from)},
       {"to", StateName(e.to)},
       {"cause", std::string(Name(e.event))},
       {"why", e.why.message()}});
}

bool EffectSender::TakeLandingArenas(const StartTenant& effect) const {
  return absl::c_all_of(effect.members, [&](const RankHolder& holder) {
    if (holder.node != to_.self) return true;
    const AttachSession* session = to_.clients.Find(holder.session);
    return session != nullptr && (session->features & features::kTakesLandingArenas) != 0;
  });
}

void EffectSender::Start(const StartTenant& effect) {
  v1::ToWorker message = ToProto(effect, to_.self, to_.cluster_secret);
  message.mutable_start_tenant()->set_landing_arenas(TakeLandingArenas(effect));
  EPD_FAILPOINT("epd.tenant.start");
  const size_t bytes = message.ByteSizeLong();
  if (bytes <= limits::kDatagramBytes) return to_.workers.Send(effect.to, message);
  const WorkerEntry* const entry = to_.workers.Find(effect.to);
  if (entry == nullptr) return;
  to_.events(TenantFailed{
      Incarnation(entry->supervisor.figures().worker_incarnation), effect.group, effect.formation,
      absl::ResourceExhaustedError(absl::StrCat(
          "its ", effect.spec.num_experts, " experts, ", effect.members.size(), " ranks and ",
          effect.bases.size(), " counts of programs take ", bytes,
          " bytes of the message that starts it, which has at most ", limits::kDatagramBytes,
          " (kDatagramBytes); start its processes anew, or let them run fewer programs"))});
}

PacketChannel::Fds EffectSender::AddSlots(const ReplyJoined& effect, v1::Joined& joined) {
  const AttachSession* session = to_.clients.Find(effect.session);
  PacketChannel::Fds fds;
  if (!effect.request || session == nullptr) return fds;
  for (const WorkerName& worker : effect.workers) {
    const auto slots = session->slots.find(worker);
    if (!worker.on_gpu() || slots == session->slots.end()) continue;
    joined.add_slots()->set_worker(ToString(worker));
    fds.push_back(slots->second.segment.fd());
    fds.push_back(slots->second.worker_event);
  }
  return fds;
}

absl::StatusOr<PacketChannel::Fds> EffectSender::TakeArenas(const ReplyJoined& effect,
                                                            v1::Joined& joined) {
  PacketChannel::Fds all;
  for (const WorkerName& worker : effect.workers) {
    WorkerEntry* const entry = to_.workers.Find(worker);
    if (entry == nullptr) {
      return absl::InternalError(absl::StrCat("there is no worker ", ToString(worker)));
    }
    absl::StatusOr<PacketChannel::Fds> fds = entry->arenas.Take(effect, {to_.self, worker}, joined);
    if (!fds.ok()) return fds;
    all.insert(all.end(), fds->begin(), fds->end());
  }
  return all;
}

// Who made the group, took a rank of it, or took the place of somebody who is gone.
void EffectSender::LogJoined(const ReplyJoined& effect) const {
  const AttachSession* session = to_.clients.Find(effect.session);
  if (session == nullptr) return;
  std::vector<uint32_t> ranks;
  for (const RankHolder& holder : effect.members) {
    if (holder.session == effect.session && holder.node == to_.self)
      ranks.push_back(holder.rank.value);
  }
  LogOfUser(session->peer.uid, LogLevel::kInfo, "joined",
            {{"group", Title(effect.spec)},
             {"epoch", effect.epoch.value},
             {"rank", absl::StrJoin(ranks, ",")},
             {"formation", effect.formation.value},
             {"session", effect.session.value},
             {"request", effect.request.value},
             {"pid", session->peer.pid},
             {"uid", session->peer.uid}});
}

void EffectSender::Reply(const ReplyJoined& effect) {
  v1::ServerMessage message;
  v1::Joined& joined = *message.mutable_joined();
  joined.set_request_id(effect.request.value);
  joined.set_group_id(effect.group.value);
  joined.set_epoch(effect.epoch.value);
  joined.set_formation(effect.formation.value);
  *joined.mutable_spec() = ToProto(effect.spec);
  for (const RankHolder& holder : effect.members) {
    v1::Joined::Member& member = *joined.add_members();
    PutHolder(holder, member);
    member.set_session_id(holder.session.value);
    if (holder.node == to_.self) member.set_worker(ToString(holder.worker));
  }
  absl::StatusOr<PacketChannel::Fds> fds = TakeArenas(effect, joined);
  if (!fds.ok()) {
    Log(LogLevel::kError, "no arenas for a session",
        {{"group", effect.spec.name},
         {"epoch", effect.epoch.value},
         {"session", effect.session.value},
         {"why", fds.status().message()}});
    return to_.clients.End(effect.session, fds.status());
  }
  if (effect.request) LogJoined(effect);
  const PacketChannel::Fds slots = AddSlots(effect, joined);
  fds->insert(fds->begin(), slots.begin(), slots.end());
  if (fds->size() > limits::kMessageFds) {
    return to_.clients.End(effect.session, absl::ResourceExhaustedError(absl::StrCat(
                                               "group=", Title(effect.spec), ": ", fds->size(),
                                               " ranks, at most ", limits::kMessageFds)));
  }
  EPD_FAILPOINT("epd.joined.send");
  if (EPD_FAILPOINT_FAILS("epd.joined.stale_epoch")) joined.set_epoch(joined.epoch() - 1);
  to_.clients.Send(effect.session, message, *std::move(fds));
  EPD_FAILPOINT("epd.joined.sent");
}

}  // namespace epd
