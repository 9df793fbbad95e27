// The groups of this process: from the alias that a program names to this job's group.
//
// A program knows an alias ("default") and sizes. What it means here, which daemon, group and
// ranks, is decided by the last Join of the alias and looked up at every call. So a group that is
// joined anew, a restarted daemon or a re-formed group needs no recompilation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/mutex.h"
#include "client/program/domain.h"
#include "client/program/first_joins.h"
#include "client/program/group_config.h"
#include "client/program/ranks_by_call.h"
#include "client/program/runs.h"

namespace epd::program {

// A call that may go ahead: its group, its number, and the promise that both stay until it ends.
class ActiveCall {
 public:
  ActiveCall() = default;
  ActiveCall(std::shared_ptr<Domain> domain, const Runs::Call& call, const char* text,
             Domain::Begun begun);
  ActiveCall(ActiveCall&&) = default;
  ActiveCall& operator=(ActiveCall&&) = default;

  epd_group* group() const { return begun_.group; }
  std::uint32_t rank() const { return call_.rank; }
  const GroupConfig& config() const { return domain_->config(); }
  const CallNumber& number() const { return begun_.number; }
  epd_key key() const;
  // Not OK: the call must not be made; epd_refuse tells every rank so.
  const Status& refusal() const { return begun_.refusal; }

  // Ends the call. A lost session or a closed group is noted: the next call attaches again. True: the call has failed
  // because a node's daemon stops in order, which is no error of the program's; begin it again.
  bool End(const Status& status);

 private:
  std::shared_ptr<Domain> domain_;
  Runs::Call call_;
  const char* text_ = nullptr;  // The caller's name or scope.
  Domain::Begun begun_;
};

// A rank of this process that sits on a device.
struct DevicePlace {
  std::shared_ptr<JoinedGroup> joined;
  std::string group;  // Its name in the daemon.
  std::uint32_t rank = 0;
};

// Thread-safe. Errors are those of epd_program.h.
class Groups {
 public:
  // The one of this process, leaked; a forked child begins with an empty one.
  static Groups& Shared();

  // Opens the process's session, if there is none. Blocks up to the C library's deadline.
  Status Connect(const Endpoint& endpoint);
  // Path of the socket in use; empty without a session.
  std::string socket_path() const;

  // Joins the groups of all domains that this process holds ranks of; collective. After an error
  // nothing is joined.
  Status Join(std::shared_ptr<const GroupConfig> config);

  // Returns once all ranks held here are in their groups; joins again where a loss was reported.
  Status Wait(std::string_view alias);

  // See epd_program_state. Of several domains the one that is furthest from ready.
  int State(std::string_view alias, std::uint64_t* epoch) const;

  // Leaves the alias's groups, once no call has been under way for 20 ms; after two seconds calls fail.
  void Finalize(std::string_view alias);

  // See epd_program_describe_with.
  void DescribeWith(std::string prefix, epd_program_describe describe) {
    by_call_.DescribeWith(std::move(prefix), describe);
  }

  // The rank that a call is of.
  Status Resolve(const epd_program_call& call, std::uint32_t* rank) const;

  // Resolves a call and lets it begin. Joins again, and blocks for that, if an earlier call reported the loss of the
  // session; nothing where it `may_wait` not.
  Status Begin(const epd_program_call& call, bool may_wait, std::optional<ActiveCall>* active);

  // The rank whose device is `device` ("cuda:0"), for calls that no CPU follows. Joins again, and blocks for that,
  // where an earlier call reported the loss of the session. Errors as of Begin; INVALID_ARGUMENT also where no rank,
  // or more than one, sits there.
  Status OnDevice(const epd_program_call& call, const std::string& device, DevicePlace* place);

 private:
  struct Entry {
    std::shared_ptr<const GroupConfig> config;
    std::map<std::uint32_t, std::shared_ptr<Domain>> domains;  // Empty where ranks join by call.
  };
  struct Resolved {
    std::shared_ptr<Domain> domain;
    std::uint32_t rank = 0;
    Status refusal;
  };

  // The living session; connects if there is none or if it has ended.
  Status LivingSession(const Endpoint& endpoint, std::shared_ptr<Session>* session);
  // nullptr: the alias has no group.
  std::shared_ptr<const Entry> Find(std::string_view alias) const;
  Status ResolveTo(const epd_program_call& call, Resolved* resolved) const;
  // As Find, once the alias's prefix was asked what it means.
  Status FindFor(const epd_program_call& call, std::shared_ptr<const Entry>* entry) const;
  std::vector<std::shared_ptr<Domain>> DomainsOf(const Entry& entry) const;
  void AwaitQuiet(const Entry& entry) const;

  mutable client::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Entry>, std::less<>> entries_ EPD_GUARDED_BY(mutex_);
  FirstJoins first_joins_;
  mutable RanksByCall by_call_;
  client::Mutex session_mutex_;  // Held while connecting, so that threads share one session.
  mutable client::Mutex session_value_mutex_;
  std::shared_ptr<Session> session_ EPD_GUARDED_BY(session_value_mutex_);
};

}  // namespace epd::program
