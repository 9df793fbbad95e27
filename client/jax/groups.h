// The groups of this process: from the alias that a compiled program names to this job's group.
//
// A program knows an alias ("default") and sizes. What it means here, which daemon, group and
// ranks, is decided by the last Bootstrap of the alias and looked up at every call. So a
// re-bootstrap, a restarted daemon or a re-formed group needs no recompilation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/mutex.h"
#include "client/jax/call_site.h"
#include "client/jax/membership.h"
#include "client/jax/runs.h"

namespace epd::jax {

// What Bootstrap fixes. One group of the daemon per domain: "<job>/<alias>/<domain>".
struct GroupConfig {
  std::string alias;
  std::string job;
  std::string instance;  // Nonce of the job's processes; ranks of different instances never meet.
  Endpoint endpoint;
  std::uint32_t num_domains = 0;
  bool by_rank = false;     // Positions in programs count this process's ranks.
  std::uint32_t ranks = 0;  // Of a domain.
  std::uint32_t experts = 0;
  std::uint32_t local_experts = 0;          // Most experts of a rank.
  std::vector<std::uint32_t> expert_owner;  // [experts], or empty: contiguous blocks.
  std::int64_t owners = 0;                  // Its digest in programs.
  std::uint32_t max_tokens = 0;
  std::uint32_t recv_capacity = 0;
  std::uint32_t hidden = 0;
  std::uint32_t top_k = 0;  // Largest of any call; 0: the C library's bound.
  epd_dtype max_dtype = EPD_DTYPE_UNSPECIFIED;
  bool drop_on_overflow = false;
  epd_executor executor = EPD_EXECUTOR_DEFAULT;
  std::string backend;  // "": the daemon's choice.
  std::int64_t warn_after_ms = 0;
  std::int64_t absent_ms = 0;
  std::int64_t undecided_ms = 0;
  std::int64_t form_ms = 0;
  // This process's ranks: domain -> (position along ep -> device, for people).
  std::map<std::uint32_t, std::map<std::uint32_t, std::string>> held;
  // For people: who holds the other ranks, by domain and position, as far as known; this process's
  // devices.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> elsewhere;
  std::string devices;
  // For people: which program of the job this process runs, and anything else.
  std::string program;
  std::string metadata;
};

// One domain: this process's ranks in one group of the daemon. Thread-safe.
class Domain;

// A call that may go ahead: its group, its number, and the promise that both stay until it ends.
class ActiveCall {
 public:
  ActiveCall() = default;
  ActiveCall(ActiveCall&&) = default;
  ActiveCall& operator=(ActiveCall&&) = default;

  epd_group* group() const { return group_; }
  std::uint32_t rank() const { return rank_; }
  const Digest& program() const { return program_; }
  const CallNumber& number() const { return number_; }
  // Not OK: the call must not be made; epd_refuse tells every rank so.
  const Status& refusal() const { return refusal_; }

  // Ends the call. A lost session or a closed group is noted: the next call attaches again.
  void End(const CallSite& site, std::int64_t run_id, const Status& status);

 private:
  friend class Groups;
  friend class Domain;
  std::shared_ptr<Domain> domain_;
  std::shared_ptr<Membership> membership_;
  epd_group* group_ = nullptr;
  std::uint32_t rank_ = 0;
  Digest program_{};
  CallNumber number_;
  Status refusal_;
};

// A rank of this process that sits on a device.
struct DevicePlace {
  std::shared_ptr<Membership> membership;
  std::string group;  // Its name in the daemon.
  std::uint32_t rank = 0;
};

// Thread-safe.
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
  //   FAILED_PRECONDITION  the alias is bootstrapped already.
  //   otherwise            see epd_connect and epd_join.
  Status Bootstrap(const GroupConfig& config);

  // Leaves the alias's groups, once no call has been under way for 20 ms; after two seconds calls fail.
  void Finalize(const std::string& alias);

  // Resolves a call of the device at `position` along ep (of this process's ranks, in a group joined
  // by rank). Joins again, and blocks for that, if an earlier call reported the loss of the session.
  //   FAILED_PRECONDITION  the alias is not bootstrapped.
  //   INVALID_ARGUMENT     the program was traced for another number of ranks; a rank that others
  //                        hold. Other sizes: see ActiveCall::refusal.
  //   otherwise            why the session or the group is gone, once per loss.
  Status Begin(const CallSite& site, std::int64_t run_id, std::int32_t domain,
               std::int32_t position, ActiveCall* call);

  // The rank whose device is `device` ("cuda:0"), for calls that no CPU follows. Joins again, and blocks for that,
  // where an earlier call reported the loss of the session. Errors as of Begin; INVALID_ARGUMENT also where no rank,
  // or more than one, sits there.
  Status OnDevice(const CallSite& site, const std::string& device, DevicePlace* place);

 private:
  struct Entry {
    GroupConfig config;
    std::map<std::uint32_t, std::shared_ptr<Domain>> domains;
  };
  friend class Domain;

  // The living session; connects if there is none or if it has ended.
  Status LivingSession(const Endpoint& endpoint, std::shared_ptr<Session>* session);
  // nullptr: the alias is not bootstrapped.
  std::shared_ptr<const Entry> EntryOf(const std::string& alias) const;
  static void AwaitQuiet(const Entry& entry);

  mutable client::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Entry>> entries_ EPD_GUARDED_BY(mutex_);
  client::Mutex session_mutex_;  // Held while connecting, so that threads share one session.
  mutable client::Mutex session_value_mutex_;
  std::shared_ptr<Session> session_ EPD_GUARDED_BY(session_value_mutex_);
};

}  // namespace epd::jax
