// Translates what clients send to what control understands.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "daemon/codec/codec.h"
#include "daemon/control/uid_limits.h"
#include "daemon/control/worker_choice.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/loop/event_sink.h"
#include "daemon/node/workers/worker_table.h"

namespace epd {

// Checks and translates; decides nothing. A message that makes no sense ends its session with
// INVALID_ARGUMENT, one whose content is wrong is answered.
class ClientGateway : public AttachObserver {
 public:
  struct Options {
    std::string host;
    SpecDefaults defaults;
    std::function<NodeLimits()> limits;  // At this moment.
    std::function<ServedGpus()> served_gpus;
    std::function<bool(SessionId)> holds_staging;  // As NodeControl's.
  };

  ClientGateway(Options options, EventSink sink, WorkerTable& workers);
  // The server calls this object and is called back by it.
  void SetServer(AttachServer* server) { server_ = server; }

  void OnAttached(const AttachSession& session) override;
  void OnClientMessage(const AttachSession& session, const v1::ClientMessage& message) override;
  void OnDetached(const AttachSession& session, const absl::Status& reason,
                  bool process_alive) override;

  const SpecDefaults& defaults() const { return options_.defaults; }

  // What sessions said of their ranks; `clients` has the sessions.
  void Save(v1::HandoverClients& clients) const;
  void Restore(const v1::HandoverClients& clients);

  // What a session's Join said of a rank for people.
  struct RankDetails {
    std::string device;
    std::string program;
    std::string metadata;
  };
  // Null when it said nothing.
  const RankDetails* FindDetails(SessionId session, const std::string& group, Rank rank) const;

 private:
  void OnJoin(const AttachSession& session, const v1::Join& join);
  // The workers that are to serve the Join's ranks: each is in the table then, and the session has slots for it.
  //   errors of ChooseWorkers; UNIMPLEMENTED: an old client; RESOURCE_EXHAUSTED
  absl::StatusOr<std::vector<WorkerName>> EnterWorkers(const AttachSession& session,
                                                       const GroupSpec& spec, const v1::Join& join);
  absl::Status EnterWorker(const AttachSession& session, const GroupSpec& spec,
                           const WorkerName& name);
  void OnDrained(const AttachSession& session, const v1::Drained& drained);
  void KeepDetails(SessionId session, const v1::Join& join);

  Options options_;
  EventSink sink_;
  WorkerTable& workers_;
  AttachServer* server_ = nullptr;
  // By (group, rank); a session is in one tenant of a group.
  std::map<SessionId, std::map<std::pair<std::string, Rank>, RankDetails>> details_;
};

}  // namespace epd
