#include "client/jax/groups.h"

#include <unistd.h>

#include <utility>

#include "client/jax/domain.h"

namespace epd::jax {
namespace {

constexpr int kInvalidArgument = 3;
constexpr int kFailedPrecondition = 9;
constexpr std::int64_t kFinalizeGraceMs = 2000;

// "[epd:CODE] group=<its name in the daemon> rank=<rank> phase=begin", for errors found here.
std::string Where(const char* code, const GroupConfig& config, std::int32_t domain,
                  std::int32_t rank) {
  return std::string("[epd:") + code + "] group=" + config.job + "/" + config.alias + "/" +
         std::to_string(domain) + " rank=" + std::to_string(rank) + " phase=begin";
}

struct Size {
  const char* field;
  std::int64_t traced;
  std::int64_t bootstrapped;
};

Status Mismatch(const std::string& where, const Size& size, const char* relation) {
  return {kInvalidArgument,
          (where.empty() ? "" : where + ": ") + "this executable was traced with " + size.field +
              "=" + std::to_string(size.traced) + ", which " + relation + " the bootstrapped " +
              size.field + "=" + std::to_string(size.bootstrapped) +
              "; trace it again (a new jax.jit of the function, or jax.clear_caches())"};
}

// OK, or INVALID_ARGUMENT: the program was traced with another value.
Status CheckEqual(const Size& size, const std::string& where) {
  return size.traced == size.bootstrapped ? Status{} : Mismatch(where, size, "is not");
}

// Sizes that the C library compares too, and whose mismatch it reports to every rank.
Status CheckSizes(const GroupConfig& config, const CallConfig& call, const std::string& where) {
  const Size tokens = {"max_tokens_per_rank", call.max_tokens, config.max_tokens};
  if (tokens.traced != tokens.bootstrapped) return Mismatch(where, tokens, "is not");
  const Size hidden = {"hidden_dim", call.hidden, config.hidden};
  if (call.operation != Operation::kPrepare && hidden.traced != hidden.bootstrapped) {
    return Mismatch(where, hidden, "is not");
  }
  const Size capacity = {"recv_capacity_per_rank", call.capacity, config.recv_capacity};
  if (capacity.traced > capacity.bootstrapped) return Mismatch(where, capacity, "is more than");
  return {};
}

std::string HeldRanks(const GroupConfig& config) {
  std::string text;
  for (const auto& [domain, ranks] : config.held) {
    for (const auto& [rank, device] : ranks) {
      if (!text.empty()) text += ", ";
      text += "domain=" + std::to_string(domain) + " rank=" + std::to_string(rank);
    }
  }
  return text;
}

Status NotHeld(const GroupConfig& config, std::int32_t domain, std::int32_t rank) {
  return {
      kInvalidArgument,
      Where("INVALID_ARGUMENT", config, domain, rank) +
          ": a device of this process runs as domain=" + std::to_string(domain) +
          " rank=" + std::to_string(rank) +
          " of the program's mesh, which another process holds (held here: " + HeldRanks(config) +
          "); use a mesh whose devices stand where they stood at ep_bootstrap, or bootstrap "
          "again with this mesh"};
}

}  // namespace

void ActiveCall::End(const CallSite& site, std::int64_t run_id, std::uint32_t rank,
                     const Status& status) {
  domain_->End({site, run_id, rank}, membership_, status);
  membership_ = nullptr;
}

Groups& Groups::Shared() {
  static std::mutex mutex;
  static Groups* groups = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    groups = new Groups;  // The parent's objects stay the parent's.
    owner = getpid();
  }
  return *groups;
}

Status Groups::LivingSession(const Endpoint& endpoint, std::shared_ptr<Session>* session) {
  const std::lock_guard connecting(session_mutex_);
  std::shared_ptr<Session> ended;
  {
    const std::lock_guard lock(session_value_mutex_);
    if (session_ != nullptr && session_->Check().ok()) {
      *session = session_;
      return {};
    }
    ended = std::exchange(session_, nullptr);
  }
  ended = nullptr;  // Disconnects, unless calls still end on it.
  const Status status = Session::Connect(endpoint, session);
  if (!status.ok()) return status;
  const std::lock_guard lock(session_value_mutex_);
  session_ = *session;
  return {};
}

Status Groups::Connect(const Endpoint& endpoint) {
  std::shared_ptr<Session> session;
  return LivingSession(endpoint, &session);
}

std::string Groups::socket_path() const {
  const std::lock_guard lock(session_value_mutex_);
  return session_ == nullptr ? "" : session_->socket_path();
}

Status Groups::Bootstrap(const GroupConfig& config) {
  auto entry = std::make_shared<Entry>();
  entry->config = config;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.contains(config.alias)) {
      return {kFailedPrecondition, "[epd:FAILED_PRECONDITION] group=" + config.alias +
                                       " is bootstrapped already; finalize it first"};
    }
  }
  const auto connect = [this, endpoint = config.endpoint](std::shared_ptr<Session>* session) {
    return LivingSession(endpoint, session);
  };
  // In ascending order in every process: two processes that share two domains never wait crosswise.
  for (const auto& [index, ranks] : config.held) {
    auto domain = std::make_shared<Domain>(config, index, connect);
    const Status status = domain->Join();
    if (!status.ok()) {
      for (const auto& [joined_index, joined] : entry->domains) joined->Close(0);
      return status;
    }
    entry->domains[index] = std::move(domain);
  }
  const std::lock_guard lock(mutex_);
  entries_[config.alias] = std::move(entry);
  return {};
}

void Groups::Finalize(const std::string& alias) {
  std::shared_ptr<const Entry> entry;
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(alias);
    if (found != entries_.end()) {
      entry = std::move(found->second);
      entries_.erase(found);
    }
    last = entries_.empty();
  }
  if (entry != nullptr) {
    for (const auto& [index, domain] : entry->domains) domain->Close(kFinalizeGraceMs);
  }
  if (!last) return;
  std::shared_ptr<Session> session;  // Disconnects after the lock.
  const std::lock_guard lock(session_value_mutex_);
  session = std::exchange(session_, nullptr);
}

Status Groups::Begin(const CallSite& site, std::int64_t run_id, std::int32_t domain,
                     std::int32_t rank, ActiveCall* call) {
  std::shared_ptr<const Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(site.config.alias);
    if (found != entries_.end()) entry = found->second;
  }
  if (entry == nullptr) {
    return {kFailedPrecondition, "[epd:FAILED_PRECONDITION] group=" + site.config.alias +
                                     " rank=" + std::to_string(rank) +
                                     " phase=begin: the group is not bootstrapped in this "
                                     "process; call ep_bootstrap"};
  }
  const std::string where = Where("INVALID_ARGUMENT", entry->config, domain, rank);
  // With another number of ranks, places in the program's mesh are none of the group's.
  const Status ranks = CheckEqual({"ep_size", site.config.ranks, entry->config.ranks}, where);
  if (!ranks.ok()) return ranks;
  const auto held = entry->config.held.find(static_cast<std::uint32_t>(domain));
  if (held == entry->config.held.end() ||
      !held->second.contains(static_cast<std::uint32_t>(rank))) {
    return NotHeld(entry->config, domain, rank);
  }
  // The results' buffers have other sizes, so the call cannot be made at all.
  call->refusal_ = CheckEqual({"num_experts", site.config.experts, entry->config.experts}, {});
  call->mismatch_ = CheckSizes(entry->config, site.config, where);
  call->domain_ = entry->domains.at(held->first);
  return call->domain_->Begin({site, run_id, static_cast<std::uint32_t>(rank)}, call);
}

}  // namespace epd::jax
